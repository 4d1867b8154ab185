//! Stand-in until the real one is merged.
#![allow(missing_docs)]
use crate::time::{Micros, Span};
#[derive(Clone, Copy, Debug, Default)]
pub struct Options;
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    Outage,
    Config,
}
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    Closed,
    Open,
    Ramp { percent: u32 },
}
#[derive(Debug)]
pub struct Breaker {
    open: Option<Micros>,
    row: u32,
    why: Why,
}
impl Breaker {
    pub fn new(_: Options) -> Self {
        Self { open: None, row: 0, why: Why::Outage }
    }
    pub fn admits(&mut self, _: Micros) -> bool {
        self.open.is_none()
    }
    pub fn succeeded(&mut self, _: Micros, _: u32, _: u32) {
        self.row = 0;
    }
    pub fn failed(&mut self, now: Micros, calls: u32, why: Why) {
        self.row += calls;
        self.why = why;
        if self.open.is_none() && (self.row >= 5 || why == Why::Config) {
            self.open = Some(now + Span::from_micros(100_000));
        }
    }
    pub fn next_probe(&self) -> Option<Micros> {
        self.open
    }
    pub fn probed(&mut self, now: Micros, good: Result<(), Why>, _: u32) {
        if good.is_ok() {
            self.open = None;
            self.row = 0;
        } else {
            self.open = Some(now + Span::from_micros(200_000));
        }
    }
    pub fn state(&self) -> State {
        if self.open.is_some() { State::Open } else { State::Closed }
    }
    pub fn why(&self) -> Option<Why> {
        self.open.map(|_| self.why)
    }
}
