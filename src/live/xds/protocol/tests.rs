//! Tests of the protocol, with given time and without a connection.

use super::*;

fn node() -> Node {
    Node {
        id: "n".to_owned(),
        ..Default::default()
    }
}

fn stream(variant: Variant) -> Stream {
    Stream::new(variant, node())
}

fn refused(content: u8) -> Outcome {
    Outcome::Refused {
        content: Digest::of([&[content][..]]),
        message: "wrong".to_owned(),
    }
}

fn bytes(text: &str) -> Bytes {
    Bytes::copy_from_slice(text.as_bytes())
}

/// Version, nonce and error of a request.
fn parts(request: &Request) -> (String, String, Option<i32>) {
    let text = |bytes: &Bytes| String::from_utf8(bytes.to_vec()).expect("UTF-8");
    match request {
        Request::StateOfTheWorld(it) => {
            assert_eq!(
                (it.type_url.as_str(), it.resource_names.len(), &it.node),
                (TYPE_URL, 0, &Some(node()))
            );
            (
                text(&it.version_info),
                text(&it.response_nonce),
                it.error_detail.as_ref().map(|error| error.code),
            )
        }
        Request::Delta(it) => {
            assert_eq!((it.type_url.as_str(), &it.node), (TYPE_URL, &Some(node())));
            (
                String::new(),
                text(&it.response_nonce),
                it.error_detail.as_ref().map(|error| error.code),
            )
        }
    }
}

fn one(requests: &[Request]) -> (String, String, Option<i32>) {
    assert_eq!(requests.len(), 1, "{requests:?}");
    parts(&requests[0])
}

fn answer(
    stream: &mut Stream,
    pace: &mut RefusalPace,
    response: (&str, &str),
    outcome: Outcome,
    now: Instant,
) -> Vec<Request> {
    stream.answer(
        bytes(response.0),
        vec![bytes(response.1)],
        outcome,
        pace,
        now,
    )
}

fn begin() -> Instant {
    Instant::now()
}

#[test]
fn a_stream_begins_without_a_version_and_a_refusal_has_the_last_accepted_one() {
    let (now, pace) = (begin(), &mut RefusalPace::default());
    let mut first = stream(Variant::StateOfTheWorld);
    assert_eq!(
        parts(&first.first(BTreeMap::new())),
        (String::new(), String::new(), None)
    );
    assert_eq!(
        one(&answer(&mut first, pace, ("7", "a"), refused(1), now)),
        (String::new(), "a".to_owned(), Some(3)),
        "none is accepted yet"
    );
    assert_eq!(
        one(&answer(
            &mut first,
            pace,
            ("8", "b"),
            Outcome::Accepted,
            now
        )),
        ("8".to_owned(), "b".to_owned(), None)
    );
    assert_eq!(
        one(&answer(&mut first, pace, ("9", "c"), refused(2), now)),
        ("8".to_owned(), "c".to_owned(), Some(3))
    );
    let mut second = stream(Variant::StateOfTheWorld);
    assert_eq!(
        parts(&second.first(BTreeMap::new())),
        (String::new(), String::new(), None),
        "a new stream knows no version"
    );
    assert_eq!(
        one(&answer(&mut second, pace, ("1", "a"), refused(3), now)),
        (String::new(), "a".to_owned(), Some(3))
    );
}

#[test]
fn the_same_refused_content_is_refused_ever_more_slowly_and_on_a_new_stream_too() {
    let (mut now, pace) = (begin(), &mut RefusalPace::default());
    let mut first = stream(Variant::StateOfTheWorld);
    assert_eq!(
        answer(&mut first, pace, ("1", "0"), refused(1), now).len(),
        1,
        "the first at once"
    );
    for (round, wait) in [1, 2, 4, 8, 16, 30, 30].into_iter().enumerate() {
        let nonce = format!("{}", round + 1);
        assert_eq!(answer(&mut first, pace, ("1", &nonce), refused(1), now), []);
        let due = first.next_due().expect("it waits");
        assert_eq!(due - now, Duration::from_secs(wait), "{round}");
        assert_eq!(first.due(pace, due - Duration::from_millis(1)), []);
        assert_eq!(one(&first.due(pace, due)).1, nonce);
        assert_eq!(first.next_due(), None);
        now = due;
    }
    let mut second = stream(Variant::StateOfTheWorld);
    assert_eq!(
        answer(&mut second, pace, ("1", "x"), refused(1), now),
        [],
        "the server closed the stream and sent the same again"
    );
    assert_eq!(
        answer(&mut second, pace, ("2", "y"), refused(2), now).len(),
        1,
        "another content is refused at once"
    );
    assert_eq!(answer(&mut second, pace, ("2", "z"), refused(2), now), []);
    assert_eq!(
        second.next_due(),
        Some(now + FIRST_WAIT),
        "and its waits begin anew"
    );
}

#[test]
fn pushes_of_the_same_refused_content_do_not_defer_its_refusal() {
    let (now, pace) = (begin(), &mut RefusalPace::default());
    let mut stream = stream(Variant::StateOfTheWorld);
    assert_eq!(
        answer(&mut stream, pace, ("1", "0"), refused(1), now).len(),
        1
    );
    for push in 1..10 {
        let at = now + Duration::from_millis(push * 100);
        assert_eq!(
            answer(&mut stream, pace, ("1", &push.to_string()), refused(1), at),
            []
        );
    }
    assert_eq!(stream.next_due(), Some(now + FIRST_WAIT));
    assert_eq!(
        one(&stream.due(pace, now + FIRST_WAIT)).1,
        "9",
        "the server takes the nonce of its last response only"
    );
}

#[test]
fn what_is_accepted_ends_the_waits_and_replaces_a_refusal_that_waits() {
    let (now, pace) = (begin(), &mut RefusalPace::default());
    let mut stream = stream(Variant::StateOfTheWorld);
    for _ in 0..2 {
        answer(&mut stream, pace, ("1", "a"), refused(1), now);
    }
    assert!(stream.next_due().is_some());
    assert_eq!(
        one(&answer(
            &mut stream,
            pace,
            ("1", "a"),
            Outcome::Accepted,
            now
        )),
        ("1".to_owned(), "a".to_owned(), None)
    );
    assert_eq!(stream.next_due(), None);
    assert_eq!(
        answer(&mut stream, pace, ("2", "b"), refused(1), now).len(),
        1,
        "at once again"
    );
}

#[test]
fn delta_names_what_is_in_force_and_answers_every_nonce() {
    let (now, pace) = (begin(), &mut RefusalPace::default());
    let mut stream = stream(Variant::Delta);
    let in_force = BTreeMap::from([("a".to_owned(), "v1".to_owned())]);
    let Request::Delta(first) = stream.first(in_force) else {
        panic!("delta")
    };
    assert_eq!(first.resource_names_subscribe, ["*"]);
    assert_eq!(
        first.initial_resource_versions.get("a").map(String::as_str),
        Some("v1")
    );
    let nonces = |requests: &[Request]| {
        requests
            .iter()
            .map(|request| parts(request).1)
            .collect::<Vec<_>>()
    };
    assert_eq!(
        nonces(&stream.answer(
            bytes(""),
            vec![bytes("1"), bytes("2")],
            Outcome::Accepted,
            pace,
            now
        )),
        ["1", "2"]
    );
    assert_eq!(
        nonces(&stream.answer(bytes(""), vec![bytes("3")], refused(1), pace, now)),
        ["3"]
    );
    assert_eq!(
        stream.answer(bytes(""), vec![bytes("4")], refused(1), pace, now),
        []
    );
    assert_eq!(
        nonces(&stream.answer(bytes(""), vec![bytes("5")], Outcome::Accepted, pace, now)),
        ["5"]
    );
    assert_eq!(
        nonces(&stream.due(pace, now + FIRST_WAIT)),
        ["4"],
        "an answer of its own, which waits all the same"
    );
    for nonce in 0..1_000 {
        stream.answer(
            bytes(""),
            vec![bytes(&nonce.to_string())],
            refused(2),
            pace,
            now,
        );
    }
    assert_eq!(stream.held.len(), MAX_HELD);
}

#[test]
fn a_long_refusal_is_cut_between_characters() {
    let (now, pace) = (begin(), &mut RefusalPace::default());
    let outcome = Outcome::Refused {
        content: Digest::of([&b""[..]]),
        message: "ü".repeat(MAX_REFUSAL_BYTES),
    };
    let requests = answer(
        &mut stream(Variant::StateOfTheWorld),
        pace,
        ("1", "a"),
        outcome,
        now,
    );
    let Request::StateOfTheWorld(request) = &requests[0] else {
        panic!("state of the world")
    };
    let message = &request.error_detail.as_ref().expect("refused").message;
    assert!(
        message.len() <= MAX_REFUSAL_BYTES + 4 && message.ends_with("ü ..."),
        "{}",
        message.len()
    );
}
