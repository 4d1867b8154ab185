//! Sentinel: who the primary is, asked at the start and followed ever after.
use super::options::Address;
use super::shared::Shared;
pub(super) async fn follow(_shared: &Shared, _master: &str, _sentinels: &[Address]) {}
