//! Files that are small to write and large to read: refused early, on a thread with a small stack,
//! before anything grows.

use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use weir::limits::rules::compile::{Options, SourceText, compile};

use super::text;

/// Guard against hanging, far above what a busy machine needs without optimization.
const GUARD: Duration = Duration::from_secs(180);

/// Compiles on a thread with the stack that test threads have, and returns the only problem.
fn refusal(text: impl Into<Vec<u8>>) -> String {
    let file = SourceText {
        name: "bomb.yaml".into(),
        text: text.into(),
    };
    let (sender, receiver) = mpsc::channel();
    let compile = move || sender.send(compile(&[file], &Options::default()).map(|_| ()));
    thread::Builder::new()
        .stack_size(2 << 20)
        .spawn(compile)
        .expect("a thread");
    let problems = receiver
        .recv_timeout(GUARD)
        .expect("an answer")
        .expect_err("a refusal");
    problems[0].to_string()
}

#[test]
fn aliases_that_double_are_refused() {
    let mut text = "domain: d\nmetadata:\n  a0: &a0 [x, x]\n".to_owned();
    for level in 1..60 {
        text += &format!(
            "  a{level}: &a{level} [*a{0}, *a{0}, *a{0}, *a{0}]\n",
            level - 1
        );
    }
    let refusal = refusal(text);
    assert_eq!(
        refusal,
        "bomb.yaml:11:12: error: the aliases of this file expand to more than 100000 nodes; use \
         fewer aliases, or split the file"
    );
}

#[test]
fn merge_keys_that_double_are_refused() {
    let mut text = "domain: d\nmetadata:\n  a0: &a0 {x: 1, y: 2}\n".to_owned();
    for level in 1..60 {
        text += &format!(
            "  a{level}: &a{level} {{<<: [*a{0}, *a{0}, *a{0}, *a{0}], k{level}: *a{0}}}\n",
            level - 1
        );
    }
    assert!(refusal(text).contains("expand to more than 100000 nodes"));
}

#[test]
fn deep_nesting_is_refused_by_a_number_and_not_by_the_stack() {
    let flow = format!("domain: d\ndescriptors: {}", "[".repeat(100_000));
    assert!(refusal(flow).contains("nested more than 64 levels deep"));
    let maps = format!("domain: d\ndescriptors: {}", "{a: ".repeat(100_000));
    assert!(refusal(maps).contains("nested more than 64 levels deep"));
    let lists = format!("domain: d\ndescriptors:\n{}", "- ".repeat(100_000));
    assert!(refusal(lists).contains("nested more than 64 levels deep"));
    let questions = "? ".repeat(100_000);
    assert!(refusal(questions).contains("nested more than 64 levels deep"));
    let mut blocks = "domain: d\n".to_owned();
    for depth in 0..2_000 {
        blocks += &format!("{:depth$}a:\n", "");
    }
    assert!(refusal(blocks).contains("nested more than 64 levels deep"));
}

#[test]
fn aliases_cannot_nest_deeper_than_text() {
    let mut text = "domain: d\nmetadata:\n  a0: &a0 [x]\n".to_owned();
    for level in 1..80 {
        text += &format!("  a{level}: &a{level} [*a{}]\n", level - 1);
    }
    assert!(refusal(text).contains("nested more than 64 levels deep"));
}

#[test]
fn sixty_four_levels_are_read() {
    // The root, metadata and 62 lists.
    let text = format!(
        "domain: d\nmetadata: {}{}\n",
        "[".repeat(63),
        "]".repeat(63)
    );
    let file = SourceText {
        name: "deep.yaml".into(),
        text: text.into_bytes(),
    };
    assert!(compile(&[file], &Options::default()).is_ok());
    let text = format!(
        "domain: d\nmetadata: {}{}\n",
        "[".repeat(64),
        "]".repeat(64)
    );
    assert!(refusal(text).contains("nested more than 64 levels deep"));
}

#[test]
fn many_anchors_are_no_trouble_and_many_nodes_are_refused() {
    let mut text = "domain: d\nmetadata:\n".to_owned();
    for number in 0..200_000 {
        text += &format!("  - &a{number} x\n");
    }
    let file = SourceText {
        name: "anchors.yaml".into(),
        text: text.into_bytes(),
    };
    assert!(compile(&[file], &Options::default()).is_ok());

    let block = format!("domain: d\nmetadata:\n{}", "- a\n".repeat(2_100_000));
    assert!(refusal(block).contains("more than 2000000 values"));
    let flow = format!("domain: d\nmetadata: [{}]", "a,".repeat(500_000));
    assert!(refusal(flow).contains("more than 500000 commas and opening brackets"));
    // Of the lines of 60,000 in a small share of the memory, the tokens of one are held at a time.
    let line = format!("  - [{}]\n", "a,".repeat(60_000));
    let text = format!("domain: d\nmetadata:\n{line}");
    let small = Options {
        max_memory: Some(40 << 20),
        ..Options::default()
    };
    let refused = |text| {
        let file = SourceText {
            name: "line.yaml".into(),
            text,
        };
        compile(&[file], &small)
            .err()
            .map(|problems| problems[0].to_string())
    };
    let refusal_of_line = refused(text.into_bytes()).unwrap_or_default();
    assert!(
        refusal_of_line.contains("a line has more than 52"),
        "{refusal_of_line}"
    );
    let shorter = format!("  - [{}]\n", "a,".repeat(30_000)).repeat(4);
    let text = format!("domain: d\nmetadata:\n{shorter}");
    assert_eq!(refused(text.into_bytes()), None);
    let open = format!("domain: d\nmetadata: {}", "{[a],".repeat(200_000));
    assert!(refusal(open).contains("more than 500000 commas and opening brackets"));
}

#[test]
fn a_huge_file_is_refused_unread() {
    let text = vec![b'#'; (16 << 20) + 1];
    let expected = "bomb.yaml: error: the file has 16777217 bytes, more than the maximum of \
        16777216; split it into several files, with MERGE_DOMAIN_CONFIG where they share a domain";
    assert_eq!(refusal(text), expected);
}

#[test]
fn long_keys_above_many_limits_are_refused_before_they_multiply() {
    let mut text = format!(
        "domain: d\ndescriptors:\n- key: {}\n  descriptors:\n",
        "k".repeat(1 << 20)
    );
    for number in 0..1_000 {
        text += &format!(
            "  - {{key: a{number}, rate_limit: {{unit: second, requests_per_unit: 1}}}}\n"
        );
    }
    assert!(refusal(text).contains("above all limits have more than 67108864 bytes in total"));
}

/// Through aliases a file of 100 KB can repeat a long key many times, and each repetition is a
/// problem of its own.
#[test]
fn problems_do_not_repeat_a_long_text() {
    let long = "x".repeat(100_000);
    let repeated = "*key : 1\n".repeat(2_000);
    let texts = [
        format!("domain: d\n? &key {long}\n: 1\n{repeated}"),
        format!(
            "domain: d\ndescriptors:\n  - key: a\n    rate_limit: {{unit: day, requests_per_unit: \
             0{long}}}\n"
        )
        .replace('x', "0"),
    ];
    for text in texts {
        let file = SourceText {
            name: "bomb.yaml".into(),
            text: text.into(),
        };
        let problems = compile(
            &[file],
            &Options {
                strict: true,
                ..Options::default()
            },
        )
        .expect_err("problems");
        let bytes: usize = problems
            .iter()
            .map(|problem| problem.to_string().len())
            .sum();
        assert!(
            problems.len() <= 1_010 && bytes < 1_000 * problems.len(),
            "{} problems of {bytes} bytes: {}",
            problems.len(),
            problems[0]
        );
    }
}

#[test]
fn repeated_keys_are_counted_and_not_listed() {
    let mut yaml = "domain: d\ndescriptors:\n- key: a\n  rate_limit: { unit: day, \
        requests_per_unit: 1 }\n  metadata:\n"
        .to_owned();
    yaml.push_str(&"    a: 1\n".repeat(3_001));
    let compiled =
        compile(&[text("a.yaml", &yaml)], &Options::default()).expect("these are warnings");
    assert_eq!(
        (
            compiled.warnings.len(),
            &*compiled.warnings[20].message.what
        ),
        (21, "2980 more problems in this file are not shown")
    );
}
