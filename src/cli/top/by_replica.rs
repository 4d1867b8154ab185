//! `weir top --by replica`: the status of each replica, with the digest of its limits and its hits.

use std::process::ExitCode;

use serde_json::{Value, json};

use super::{TopCommand, WINDOWS, api, print};
use crate::cli::admin::{Call, Service, with_query};
use crate::limits::rules::compile::OneLine;

/// Columns, and the fields of an answer that they show. The first two are in addition to the status,
/// in the order of [`api::RANKINGS`].
const HEADS: &str = "HITS/S REFUSED/S DIGEST STARTED ADDRESS REPLICA";
const FIELDS: &str = "hits_per_second refused_per_second digest started_at address replica";

pub(super) fn run(top: &TopCommand) -> anyhow::Result<ExitCode> {
    let query = async |service: &Service| {
        let mut row: Value = service.call(&Call::get("status")).await?;
        for (rate, (by, _)) in FIELDS.split(' ').zip(api::RANKINGS) {
            let window = WINDOWS[top.since as usize].0;
            let call = with_query("top", &[("window", Some(window)), ("by", Some(by))]);
            let all: api::Top = service.call(&Call::get(&call)).await?;
            row[rate] = json!((all.total.saturating_mul(10) / all.seconds.max(1)) as f64 / 10.0);
        }
        row["address"] = json!(service.address());
        Ok(row)
    };
    let rows = print::block_on(top.admin.service.query_each(query))?;
    rows.check_any()?;
    let cell = |row: &Value, field| OneLine(&print::plain(&row[field])).to_string();
    let row = |row| FIELDS.split(' ').map(|field| cell(row, field)).collect();
    let heads: Vec<_> = HEADS.split(' ').collect();
    let table = print::table(&heads, rows.answer.iter().map(row), 2);
    let rows = rows.map(|rows| json!({ "answers": rows }));
    rows.print(top.admin.format, |_| table)
}
