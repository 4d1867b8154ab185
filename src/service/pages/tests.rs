#![expect(clippy::disallowed_methods, reason = "tests own their tasks")]

use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};

use super::*;
use crate::net::http::serve;
use crate::net::http::serving::{ANSWER_DEADLINE, GRACE};
use crate::observe::health::Status as HealthStatus;
use crate::observe::metrics::families;

struct Listening {
    address: SocketAddr,
    metrics: Arc<Metrics>,
    health: Health,
    stop: watch::Sender<bool>,
    served: JoinHandle<()>,
}

/// A listener whose decision depends on the request's domain: `over`, `later`, `panic`, a code's
/// number, or OK.
async fn listening() -> Listening {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (metrics, health) = (Metrics::new(1, 0.8), Health::default());
    health.report(HealthStatus::Ready);
    let pages = Pages::new(
        Arc::clone(&metrics),
        health.clone(),
        MemoryBudget::new(16 << 20),
        Some(Box::new(|request: Bytes| {
            Box::pin(async move {
                // A domain is field 1: tag, length, text.
                let domain =
                    String::from_utf8_lossy(request.get(2..).unwrap_or_default()).into_owned();
                match domain.as_str() {
                    "over" => Ok(Bytes::from_static(b"\x08\x02")),
                    "later" => {
                        sleep(Duration::from_millis(200)).await;
                        Ok(Bytes::from_static(b"\x08\x01"))
                    }
                    "panic" => panic!("on purpose"),
                    "broken" => Ok(Bytes::from_static(b"\xff")),
                    code => match code.parse::<i32>() {
                        Ok(code) => Err(Status::new(Code::from(code), "refused\nin two lines")),
                        Err(_) => Ok(Bytes::from_static(b"\x08\x01")),
                    },
                }
            })
        })),
    );
    let (stop, stopping) = watch::channel(false);
    let unfinished = MemoryBudget::new(16 << 20);
    let served = tokio::spawn(serve(listener, pages, unfinished, stopping));
    Listening {
        address,
        metrics,
        health,
        stop,
        served,
    }
}

/// Sends `request` as it is, and reads until the other side closes.
async fn raw(address: SocketAddr, request: &[u8]) -> String {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(request).await.unwrap();
    let mut answer = Vec::new();
    let _ = timeout(Duration::from_secs(10), stream.read_to_end(&mut answer))
        .await
        .expect("an answer in time");
    String::from_utf8(answer).unwrap()
}

/// Status, head and body of one request.
async fn call(address: SocketAddr, method: &str, path: &str, body: &str) -> (u16, String, String) {
    let length = body.len();
    let request = format!(
        "{method} {path} HTTP/1.1\r\nhost: weir\r\nconnection: close\r\ncontent-length: \
         {length}\r\n\r\n{body}"
    );
    let answer = raw(address, request.as_bytes()).await;
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    (status, head.to_ascii_lowercase(), body.to_owned())
}

#[tokio::test]
async fn pages_are_found_by_their_paths() {
    let Listening {
        address,
        metrics,
        health,
        stop: _stop,
        ..
    } = listening().await;
    for method in ["GET", "POST", "PUT"] {
        let (status, _, body) = call(address, method, "/healthcheck", "").await;
        assert_eq!((status, body.as_str()), (200, "OK"));
    }
    let (status, head, body) = call(address, "GET", "/metrics?x=y", "").await;
    // Times and sizes of the process differ from one moment to the next.
    let steady = |text: &str| {
        text.lines()
            .filter(|line| !line.starts_with("process_") && !line.starts_with("weir_config_age"))
            .collect::<Vec<_>>()
            .join("\n")
    };
    assert_eq!((status, steady(&body)), (200, steady(&metrics.encode())));
    assert!(
        head.contains("content-type: text/plain; version=0.0.4"),
        "{head}"
    );
    // HEAD encodes no text: the answer has no length, and no scrape is counted.
    let (status, head, body) = call(address, "HEAD", "/metrics", "").await;
    assert_eq!(
        (status, body.as_str(), head.contains("content-length")),
        (200, "", false),
        "{head}"
    );
    assert!(
        head.contains("content-type: text/plain; version=0.0.4")
            && head.contains("vary: accept-encoding"),
        "{head}"
    );
    let (status, head, _) = call(address, "POST", "/metrics", "").await;
    assert!(status == 405 && head.contains("allow: get, head"), "{head}");
    let (status, _, body) = call(address, "GET", "/", "").await;
    assert!(
        status == 200
            && body.contains("/healthcheck")
            && body.contains("/metrics")
            && body.contains("/json"),
        "{body}"
    );
    assert_eq!(call(address, "GET", "/healthcheck/", "").await.0, 404);
    health.report(HealthStatus::Draining);
    let (status, _, body) = call(address, "GET", "/healthcheck", "").await;
    assert_eq!(
        (status, body.as_str()),
        (500, "the process is shutting down\n")
    );
}

#[tokio::test]
async fn json_is_decided_and_errors_have_their_status() {
    let Listening {
        address,
        metrics,
        stop: _stop,
        ..
    } = listening().await;
    for (domain, expected, shown) in [
        ("d", 200, "{\"overallCode\":\"OK\"}"),
        ("over", 429, "{\"overallCode\":\"OVER_LIMIT\"}"),
        ("3", 400, "refused in two lines\n"),
        ("14", 503, "refused in two lines\n"),
        ("4", 503, "refused in two lines\n"),
        ("8", 503, "refused in two lines\n"),
        ("13", 500, "refused in two lines\n"),
        ("2", 500, "refused in two lines\n"),
    ] {
        let (status, head, body) = call(
            address,
            "POST",
            "/json",
            &format!("{{\"domain\": \"{domain}\"}}"),
        )
        .await;
        assert_eq!((status, body.as_str()), (expected, shown), "{domain}");
        let content_type = if shown.starts_with('{') {
            "application/json"
        } else {
            "text/plain"
        };
        assert!(
            head.contains(&format!("content-type: {content_type}")),
            "{head}"
        );
    }
    for domain in ["panic", "broken"] {
        assert_eq!(
            call(
                address,
                "POST",
                "/json",
                &format!("{{\"domain\": \"{domain}\"}}")
            )
            .await
            .0,
            500
        );
    }
    assert!(metrics.encode().contains("weir_panics_total 1\n"));
    for method in ["GET", "PUT", "DELETE"] {
        let (status, head, _) = call(address, method, "/json", "{\"domain\": \"d\"}").await;
        assert!(
            status == 405 && head.contains("\r\nallow: post"),
            "{method}: {head}"
        );
    }
    for body in ["", "{", "{\"domain\": \"d\", \"x\": 1}"] {
        let (status, _, message) = call(address, "POST", "/json", body).await;
        assert!(
            status == 400
                && message.starts_with("the body is not a RateLimitRequest")
                && message.lines().count() == 1,
            "{message}"
        );
    }
}

#[tokio::test]
async fn a_body_that_is_too_large_is_refused_without_reading_all_of_it() {
    let Listening {
        address,
        stop: _stop,
        ..
    } = listening().await;
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream
        .write_all(b"POST /json HTTP/1.1\r\nhost: weir\r\ncontent-length: 1000000000\r\n\r\n")
        .await
        .unwrap();
    let chunk = vec![b' '; 1 << 20];
    let (mut reading, mut writing) = stream.split();
    let mut answer = vec![0; 12];
    let write = async {
        // The write fails when the other side closes the connection.
        while writing.write_all(&chunk).await.is_ok() {}
        std::future::pending::<()>().await;
    };
    tokio::select! {
        read = timeout(Duration::from_secs(10), reading.read_exact(&mut answer)) => {
            assert_eq!(read.unwrap().unwrap(), 12);
        }
        () = write => {}
    }
    assert_eq!(answer, b"HTTP/1.1 413");
}

#[tokio::test]
async fn connections_are_kept_and_broken_requests_are_answered() {
    let Listening {
        address,
        stop: _stop,
        ..
    } = listening().await;
    let twice = b"GET /healthcheck HTTP/1.1\r\nhost: weir\r\n\r\nGET /healthcheck \
        HTTP/1.1\r\nhost: weir\r\nconnection: close\r\n\r\n";
    assert_eq!(raw(address, twice).await.matches("HTTP/1.1 200").count(), 2);
    assert!(
        raw(address, b"\x00\x01\x02\r\n\r\n")
            .await
            .starts_with("HTTP/1.1 400")
    );
}

#[tokio::test]
async fn stopping_answers_what_is_in_flight_and_closes_what_is_idle() {
    let Listening {
        address,
        stop,
        served,
        ..
    } = listening().await;
    let mut idle = TcpStream::connect(address).await.unwrap();
    idle.write_all(b"GET /healthcheck HTTP/1.1\r\nhost: weir\r\n\r\n")
        .await
        .unwrap();
    let mut first = [0; 12];
    idle.read_exact(&mut first).await.unwrap();
    let in_flight =
        tokio::spawn(
            async move { call(address, "POST", "/json", "{\"domain\": \"later\"}").await },
        );
    sleep(Duration::from_millis(50)).await;
    stop.send_replace(true);
    assert_eq!(in_flight.await.unwrap().0, 200);
    timeout(GRACE / 2, served)
        .await
        .expect("nothing is waited for")
        .unwrap();
    let mut rest = Vec::new();
    idle.read_to_end(&mut rest).await.unwrap();
    assert!(TcpStream::connect(address).await.is_err());
}

/// The clock is paused: tokio advances it when all tasks wait.
#[tokio::test(start_paused = true)]
async fn a_client_that_does_not_take_an_answer_is_disconnected() {
    let Listening {
        address,
        metrics,
        stop: _stop,
        ..
    } = listening().await;
    // Megabytes, more than the sockets of both sides buffer.
    let value = "v".repeat(1 << 20);
    metrics.register(move || {
        (0..32)
            .map(|number| families::DOMAIN_NOT_FOUND.count(&[&format!("{number}{value}")], number))
            .collect::<Vec<_>>()
    });
    let mut stream = TcpStream::connect(address).await.unwrap();
    let began = Instant::now();
    stream
        .write_all(b"GET /metrics HTTP/1.1\r\nhost: weir\r\n\r\n")
        .await
        .unwrap();
    stream.read_exact(&mut [0; 12]).await.unwrap();
    sleep(ANSWER_DEADLINE + Duration::from_secs(1)).await;
    let mut rest = Vec::new();
    let _ = stream.read_to_end(&mut rest).await;
    assert!(rest.len() < 32 << 20, "{} bytes", rest.len());
    assert!(
        began.elapsed() < 2 * ANSWER_DEADLINE,
        "{:?}",
        began.elapsed()
    );
}
