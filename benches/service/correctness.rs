//! Checks the answers of a server with a real client before anything is measured, so that no fast
//! but wrong server is compared.

use std::net::SocketAddr;

use weir::core::proto::rate_limit_response::rate_limit::Unit;
use weir::core::proto::rate_limit_response::{Code, DescriptorStatus};
use weir::core::proto::{RateLimitRequest, RateLimitResponse, RateLimitServiceClient};

use super::servers::{Server, ServerKind};
use super::workload;

/// Hits after which every server must refuse a limit of three; some servers count after they
/// answer.
const SURELY_REFUSED: usize = 400;

/// Panics when an answer is wrong. The load does not use this key, except in the limits that all
/// users share.
pub fn answers(server: &Server, kind: &ServerKind) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    let call = |request| {
        runtime
            .block_on(call(server.address, request))
            .unwrap_or_else(|status| panic!("{status}\n{}", server.log()))
    };
    for descriptors in [1, 3] {
        let answer = call(vec![workload::request(workload::KEYS, descriptors)]).remove(0);
        assert_eq!(answer.overall_code(), Code::Ok, "{kind:?}: {answer:?}");
        match kind {
            ServerKind::Memory { algorithm } | ServerKind::Redis { algorithm } => {
                assert_eq!(answer.statuses.len(), descriptors);
                answer
                    .statuses
                    .iter()
                    .for_each(|status| assert_is_complete(status, algorithm));
            }
            ServerKind::Empty(_) => assert_eq!(answer.statuses.len(), descriptors),
            ServerKind::Peer(_) => {}
        }
    }
    let narrow = workload::exact_request("narrow", "anyone");
    match kind {
        ServerKind::Memory { .. } | ServerKind::Redis { .. } => {
            let answers = call(vec![narrow; workload::NARROW as usize + 1]);
            let (over, within) = answers.split_last().expect("answers");
            assert!(
                within
                    .iter()
                    .all(|answer| answer.overall_code() == Code::Ok),
                "{answers:?}"
            );
            assert_eq!(
                (over.overall_code(), over.statuses[0].code()),
                (Code::OverLimit, Code::OverLimit)
            );
        }
        ServerKind::Empty(_) => {}
        ServerKind::Peer(peer) => {
            let answers = call(vec![narrow; SURELY_REFUSED]);
            assert!(
                answers
                    .iter()
                    .any(|answer| answer.overall_code() == Code::OverLimit),
                "{} never refuses",
                peer.name
            );
        }
    }
}

/// Asserts that a status has all fields of which Envoy makes headers.
fn assert_is_complete(status: &DescriptorStatus, algorithm: &str) {
    let limit = status.current_limit.as_ref().expect("a limit");
    assert_eq!(
        (status.code(), limit.unit(), limit.requests_per_unit),
        (Code::Ok, Unit::Minute, workload::per_minute(algorithm)),
        "{status:?}"
    );
    assert!(
        status.limit_remaining <= limit.requests_per_unit && status.duration_until_reset.is_some(),
        "{status:?}"
    );
}

/// Sends requests one after the other with a new client.
pub async fn call(
    address: SocketAddr,
    requests: Vec<RateLimitRequest>,
) -> Result<Vec<RateLimitResponse>, tonic::Status> {
    let mut client = RateLimitServiceClient::connect(format!("http://{address}"))
        .await
        .map_err(|error| tonic::Status::from_error(error.into()))?;
    let mut answers = Vec::new();
    for request in requests {
        answers.push(client.should_rate_limit(request).await?.into_inner());
    }
    Ok(answers)
}
