//! Who may change what, and what is written about it where.

use weir::core::proto::rate_limit_response::Code;

use super::{Desk, LIMITS, call};
use crate::support::wait::eventually;

/// The word behind a token in the file is its right; a token without one has all.
#[tokio::test]
async fn a_token_has_the_right_of_its_line() {
    let desk = Desk::new();
    let line = |right: &str| {
        let lines = format!("alice:0123456789abcdef0123{right}\nbob:fedcba98765432100123\n");
        std::fs::write(desk.path("tokens"), lines).expect("written");
    };
    let weir = desk.start(LIMITS, &[]);
    line("");
    let (all, one) = (
        ["block", "-d", "shop", "user", "--all"],
        ["block", "-d", "shop", "user=1"],
    );
    desk.ok(&weir, &all);
    for (right, word) in [(" read", "read"), ("  change", "change")] {
        line(right);
        let expected = |need| {
            format!(
                "the token alice has the right `{word}`, and this needs `{need}`: the word behind \
                 the token in ADMIN_TOKEN_FILE\n"
            )
        };
        // Reading is free; wide overrides are neither set nor ended.
        assert!(desk.ok(&weir, &["overrides"]).contains("user"));
        let needs = match word {
            "read" => "change",
            _ => "all",
        };
        assert_eq!(desk.fails(&weir, &all), expected(needs));
        assert_eq!(
            desk.fails(&weir, &["unblock", "-d", "shop", "user"]),
            expected(needs)
        );
        let mut client = weir.client().await;
        let answer = call(&mut client, "shop", "user", "2", 1).await;
        assert_eq!(
            answer.overall_code(),
            Code::OverLimit,
            "the wide one is in force"
        );
        if word == "read" {
            for refused in [&one[..], &["reset", "-d", "shop", "vip=1"]] {
                assert_eq!(desk.fails(&weir, refused), expected("change"));
            }
            continue;
        }
        desk.ok(&weir, &one);
        desk.ok(&weir, &["raise", "-d", "shop", "user=a*", "--to", "5/year"]);
        desk.ok(&weir, &["unblock", "-d", "shop", "user=1"]);
        call(&mut client, "shop", "vip", "1", 1).await;
        desk.ok(&weir, &["reset", "-d", "shop", "vip=1"]);
    }
    line(" all");
    desk.ok(&weir, &["unblock", "-d", "shop", "user"]);
    line(" everything");
    assert!(
        desk.fails(&weir, &one)
            .contains("ADMIN_TOKEN_FILE line 1: write nothing, read, change or all behind a token")
    );
}

/// `LOG_SUBJECTS` is the form of values in audit lines too, and an override has the digest of a
/// long value, which may be a secret.
#[tokio::test]
async fn values_of_overrides_are_not_shown_where_they_must_not() {
    let desk = Desk::new();
    let key = format!("sk-{}", "0123456789abcdef".repeat(13));
    let argument = format!("user={key}");
    let (file, secret) = (desk.path("overrides.json"), desk.path("secret"));
    std::fs::write(&secret, "0123456789abcdef\n").expect("written");
    for (form, short) in [
        ("off", "user"),
        // printf %s ann | openssl dgst -sha256 -hmac 0123456789abcdef
        ("hashed", "user=fb385915a0623c0b"),
        ("plain", "user=ann"),
    ] {
        let mut environment = vec![
            ("LOG_SUBJECTS", form),
            ("OVERRIDES_FILE", file.to_str().expect("UTF-8")),
        ];
        if form == "hashed" {
            environment.push(("LOG_SUBJECTS_SECRET_FILE", secret.to_str().expect("UTF-8")));
        }
        let weir = desk.start(LIMITS, &environment);
        let client = &mut weir.client().await;
        let block = ["-d", "shop", argument.as_str()];
        for ordered in [&["block"][..], &["block"]] {
            let printed = desk.ok(&weir, &[ordered, &block].concat());
            assert!(
                printed.contains("user#") && !printed.contains(&key),
                "{printed}"
            );
        }
        desk.ok(
            &weir,
            &["block", "-d", "shop", "user=ann", "--until", "2100-01-01"],
        );
        desk.ok(&weir, &["reset", "-d", "shop", "user=ann"]);
        for (value, expected) in [
            (&*key, Code::OverLimit),
            (&format!("{key}0"), Code::Ok),
            ("ann", Code::OverLimit),
        ] {
            let answer = call(client, "shop", "user", value, 1).await;
            assert_eq!(answer.overall_code(), expected, "{form} {value}");
        }
        let kept = std::fs::read_to_string(&file).expect("a file");
        assert!(
            kept.contains("value_sha256") && !kept.contains(&key),
            "{kept}"
        );
        desk.ok(&weir, &[&["unblock"], &block[..]].concat());
        let answer = call(client, "shop", "user", &key, 1).await;
        assert_eq!(answer.overall_code(), Code::Ok, "{form}");
        desk.ok(&weir, &["unblock", "-d", "shop", "user=ann"]);
        // Without values the lines about both look alike.
        let (field, expected) = (
            format!("\"entries\":\"{short}\""),
            if form == "off" { 6 } else { 3 },
        );
        let log = || weir.logs().join("\n");
        let has_all = || (log().matches(&field).count() == expected).then_some(());
        assert!(eventually(has_all).is_some(), "{form}: {}", log());
        let log = log();
        assert!(!log.contains(&key), "{form}: {log}");
        assert_eq!(log.contains("ann"), form == "plain", "{log}");
    }
}
