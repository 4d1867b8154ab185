//! Tests of the protocol, with given time and without a connection.

use super::*;

fn node() -> Node {
    Node {
        id: "n".to_owned(),
        ..Default::default()
    }
}

fn stream() -> Stream {
    Stream::new(node())
}

fn refused(content: u64) -> ApplyOutcome {
    ApplyOutcome::Refused {
        content,
        message: "wrong".to_owned(),
    }
}

fn bytes(text: &str) -> Bytes {
    Bytes::copy_from_slice(text.as_bytes())
}

/// Version, nonce and error of a request.
fn parts(request: &DiscoveryRequest) -> (String, String, Option<i32>) {
    let text = |bytes: &Bytes| String::from_utf8(bytes.to_vec()).expect("UTF-8");
    assert_eq!(
        (
            request.type_url.as_str(),
            request.resource_names.len(),
            &request.node
        ),
        (TYPE_URL, 0, &Some(node()))
    );
    (
        text(&request.version_info),
        text(&request.response_nonce),
        request.error_detail.as_ref().map(|error| error.code),
    )
}

fn one(request: Option<DiscoveryRequest>) -> (String, String, Option<i32>) {
    parts(&request.expect("a request"))
}

fn answer(
    stream: &mut Stream,
    pace: &mut RefusalPace,
    response: (&str, &str),
    outcome: ApplyOutcome,
    now: Instant,
) -> Option<DiscoveryRequest> {
    stream.answer(bytes(response.0), bytes(response.1), outcome, pace, now)
}

fn begin() -> Instant {
    Instant::now()
}

#[test]
fn a_stream_begins_without_a_version_and_a_refusal_has_the_last_accepted_one() {
    let (now, pace) = (begin(), &mut RefusalPace::default());
    let mut first = stream();
    assert_eq!(parts(&first.first()), (String::new(), String::new(), None));
    assert_eq!(
        one(answer(&mut first, pace, ("7", "a"), refused(1), now)),
        (String::new(), "a".to_owned(), Some(3)),
        "none is accepted yet"
    );
    assert_eq!(
        one(answer(
            &mut first,
            pace,
            ("8", "b"),
            ApplyOutcome::Accepted,
            now
        )),
        ("8".to_owned(), "b".to_owned(), None)
    );
    assert_eq!(
        one(answer(&mut first, pace, ("9", "c"), refused(2), now)),
        ("8".to_owned(), "c".to_owned(), Some(3))
    );
    let mut second = stream();
    assert_eq!(
        parts(&second.first()),
        (String::new(), String::new(), None),
        "a new stream knows no version"
    );
    assert_eq!(
        one(answer(&mut second, pace, ("1", "a"), refused(3), now)),
        (String::new(), "a".to_owned(), Some(3))
    );
}

#[test]
fn the_same_refused_content_is_refused_ever_more_slowly_and_on_a_new_stream_too() {
    let (mut now, pace) = (begin(), &mut RefusalPace::default());
    let mut first = stream();
    assert!(
        answer(&mut first, pace, ("1", "0"), refused(1), now).is_some(),
        "the first at once"
    );
    for (round, wait) in [1, 2, 4, 8, 16, 30, 30].into_iter().enumerate() {
        let nonce = format!("{}", round + 1);
        assert_eq!(
            answer(&mut first, pace, ("1", &nonce), refused(1), now),
            None
        );
        let due = first.next_due().expect("it waits");
        assert_eq!(due - now, Duration::from_secs(wait), "{round}");
        assert_eq!(first.due(pace, due - Duration::from_millis(1)), None);
        assert_eq!(one(first.due(pace, due)).1, nonce);
        assert_eq!(first.next_due(), None);
        now = due;
    }
    let mut second = stream();
    assert_eq!(
        answer(&mut second, pace, ("1", "x"), refused(1), now),
        None,
        "the server closed the stream and sent the same again"
    );
    assert!(
        answer(&mut second, pace, ("2", "y"), refused(2), now).is_some(),
        "another content is refused at once"
    );
    assert_eq!(answer(&mut second, pace, ("2", "z"), refused(2), now), None);
    assert_eq!(
        second.next_due(),
        Some(now + FIRST_WAIT),
        "and its waits begin anew"
    );
}

#[test]
fn pushes_of_the_same_refused_content_do_not_defer_its_refusal() {
    let (now, pace) = (begin(), &mut RefusalPace::default());
    let mut stream = stream();
    assert!(answer(&mut stream, pace, ("1", "0"), refused(1), now).is_some());
    for push in 1..10 {
        let at = now + Duration::from_millis(push * 100);
        assert_eq!(
            answer(&mut stream, pace, ("1", &push.to_string()), refused(1), at),
            None
        );
    }
    assert_eq!(stream.next_due(), Some(now + FIRST_WAIT));
    assert_eq!(
        one(stream.due(pace, now + FIRST_WAIT)).1,
        "9",
        "the server takes the nonce of its last response only"
    );
}

#[test]
fn what_is_accepted_ends_the_waits_and_replaces_a_refusal_that_waits() {
    let (now, pace) = (begin(), &mut RefusalPace::default());
    let mut stream = stream();
    for _ in 0..2 {
        answer(&mut stream, pace, ("1", "a"), refused(1), now);
    }
    assert!(stream.next_due().is_some());
    assert_eq!(
        one(answer(
            &mut stream,
            pace,
            ("1", "a"),
            ApplyOutcome::Accepted,
            now
        )),
        ("1".to_owned(), "a".to_owned(), None)
    );
    assert_eq!(stream.next_due(), None);
    assert!(
        answer(&mut stream, pace, ("2", "b"), refused(1), now).is_some(),
        "at once again"
    );
}

#[test]
fn a_long_refusal_is_cut_between_characters() {
    let (now, pace) = (begin(), &mut RefusalPace::default());
    let outcome = ApplyOutcome::Refused {
        content: 1,
        message: "ü".repeat(MAX_REFUSAL_BYTES),
    };
    let request = answer(&mut stream(), pace, ("1", "a"), outcome, now).expect("a request");
    let message = request.error_detail.expect("refused").message;
    assert!(
        message.len() <= MAX_REFUSAL_BYTES + 4 && message.ends_with("ü ..."),
        "{}",
        message.len()
    );
}
