//! The fake server: takes connections and commands, and lets happen to them what is to happen.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use fastrand::Rng;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
use tokio::sync::Notify;
use tokio::task::yield_now;
use tokio::time::{Duration, Instant, sleep, sleep_until};

use super::counters::{Counters, Session};
use super::faults::{Event, Forecast, Mishap, Weather};
use super::wire::{self, Command, Reply};
use crate::store::redis::connection::simulated::SimulatedStream;
use crate::time::Micros;

/// About now, in the middle of an hour.
const START: Micros = Micros(1_800_001_000_000_000);

#[derive(Debug)]
pub(super) struct Server {
    state: Mutex<State>,
    /// Told to all connections that they end.
    hang_up: Notify,
    /// Told when the weather changes.
    changed: Notify,
}

#[derive(Debug)]
pub(super) struct State {
    pub(super) counters: Counters,
    pub(super) weather: Weather,
    /// Of a thousand commands.
    pub(super) mishaps: u32,
    with_mistakes: bool,
    random: Rng,
    /// While it is busy: when it has done all that it has begun.
    free: Instant,
    /// Connections.
    pub(super) open: usize,
    /// What happened, by name.
    pub(super) happened: BTreeMap<&'static str, u64>,
}

/// What becomes of a connection after a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Then {
    GoOn,
    Close,
}

/// One connection as the server sees it.
struct Peer {
    stream: DuplexStream,
    out: Vec<u8>,
    session: Session,
    is_mute: bool,
    is_deaf: bool,
    trickles: bool,
}

impl Server {
    pub(super) fn new(mut random: Rng, forecast: &Forecast, password: Option<&'static str>) -> Arc<Self> {
        let state = State {
            counters: Counters::new(Micros(START.0 + random.u64(..600_000_000)), password),
            weather: Weather::Calm,
            mishaps: forecast.mishaps,
            with_mistakes: forecast.with_mistakes,
            random,
            free: Instant::now(),
            open: 0,
            happened: BTreeMap::new(),
        };
        Arc::new(Self { state: Mutex::new(state), hang_up: Notify::new(), changed: Notify::new() })
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn happen(&self, event: Event) {
        let mut state = self.state();
        let name = match event {
            Event::Weather(weather) => {
                state.weather = weather;
                self.changed.notify_waiters();
                weather.name()
            }
            Event::Jump(micros) => {
                state.counters.clock = Micros(state.counters.clock.0.saturating_add_signed(micros));
                "jump"
            }
            Event::HangUp => {
                self.hang_up.notify_waiters();
                "hang up"
            }
            Event::Forgets => {
                state.counters.knows_script = false;
                "forgets"
            }
        };
        *state.happened.entry(name).or_default() += 1;
    }

    /// What `Socket::connect` gets in place of a socket.
    #[expect(clippy::disallowed_methods, reason = "a connection of the fake ends when the other side does")]
    pub(super) async fn connect(self: Arc<Self>) -> io::Result<SimulatedStream> {
        // Even the fastest network lets somebody else run first.
        yield_now().await;
        let weather = self.state().weather;
        match weather {
            Weather::Refusing => return Err(io::ErrorKind::ConnectionRefused.into()),
            Weather::Unreachable => std::future::pending().await,
            _ => {}
        }
        let size = [8 << 10, 64 << 10][self.state().random.usize(..2)];
        let (theirs, stream) = duplex(size);
        self.state().open += 1;
        let peer = Peer { stream, out: Vec::new(), session: Session::default(), is_mute: false, is_deaf: false, trickles: false };
        tokio::spawn(async move {
            self.serve(peer).await;
            self.state().open -= 1;
        });
        Ok(SimulatedStream::new(theirs))
    }

    async fn serve(&self, mut peer: Peer) {
        let (mut input, mut chunk) = (Vec::new(), vec![0; 4_096]);
        loop {
            while let Some(command) = wire::take(&mut input) {
                self.while_stopped().await;
                if self.obey(command, &mut peer).await == Then::Close {
                    return;
                }
            }
            peer.flush().await;
            let count = tokio::select! {
                biased;
                () = self.hang_up.notified() => return,
                count = peer.stream.read(&mut chunk) => count.unwrap_or(0),
            };
            if count == 0 {
                return;
            }
            input.extend_from_slice(&chunk[..count]);
            self.while_stopped().await;
        }
    }

    async fn while_stopped(&self) {
        loop {
            let changed = self.changed.notified();
            if !matches!(self.state().weather, Weather::Stopped) {
                return;
            }
            changed.await;
        }
    }

    async fn obey(&self, command: Command, peer: &mut Peer) -> Then {
        let (mishap, weather) = self.draw(&command);
        match weather {
            Weather::Slow(time) => peer.wait(time).await,
            Weather::Busy(time) => self.take_turns(time * u32::try_from(command.len()).unwrap_or(u32::MAX), peer).await,
            _ => {}
        }
        peer.is_mute |= matches!(weather, Weather::Silent);
        let mut refusal = if let Weather::Erring(line) = weather { Some(line) } else { None };
        match mishap {
            Some(Mishap::Late(time)) => peer.wait(time).await,
            Some(Mishap::CloseBefore) => {
                peer.flush().await;
                return Then::Close;
            }
            Some(Mishap::Mute { runs }) => {
                peer.is_mute = true;
                peer.is_deaf |= !runs;
            }
            Some(Mishap::Refused(line)) => refusal = Some(line),
            Some(Mishap::Trickle) => peer.trickles = true,
            Some(Mishap::Forgot) => self.state().counters.knows_script = false,
            _ => {}
        }
        if peer.is_deaf {
            return Then::GoOn;
        }
        let mut reply = Vec::new();
        self.state().counters.execute(&mut peer.session, command, refusal).write(&mut reply);
        match mishap {
            Some(Mishap::SlowToSay(time)) => peer.wait(time).await,
            Some(Mishap::CloseAfter) => {
                peer.flush().await;
                return Then::Close;
            }
            Some(Mishap::Cut { bytes, closes }) => {
                // At least the last byte is missing.
                reply.truncate(bytes.min(reply.len() - 1));
                peer.out.append(&mut reply);
                peer.flush().await;
                peer.is_mute = true;
                return if closes { Then::Close } else { Then::GoOn };
            }
            Some(Mishap::Garbage) => reply = b"HTTP/1.1 400 Bad Request\r\n".to_vec(),
            Some(Mishap::OneTooMany) => Reply::Line("OK").write(&mut reply),
            _ => {}
        }
        peer.out.append(&mut reply);
        Then::GoOn
    }

    /// Does what takes so long after all that others have brought before.
    async fn take_turns(&self, time: Duration, peer: &mut Peer) {
        let free = {
            let mut state = self.state();
            state.free = state.free.max(Instant::now()) + time;
            state.free
        };
        // The timer's grain is a millisecond.
        if free > Instant::now() + Duration::from_millis(1) {
            peer.flush().await;
            sleep_until(free).await;
        }
    }

    fn draw(&self, command: &Command) -> (Option<Mishap>, Weather) {
        let mut state = self.state();
        state.counters.hear(command);
        let State { weather, mishaps, with_mistakes, random, .. } = &mut *state;
        let weather = *weather;
        let mishaps = if let Weather::Rough(mishaps) = weather { mishaps } else { *mishaps };
        let mishap = (random.u32(..1_000) < mishaps).then(|| Mishap::draw(random, *with_mistakes));
        if let Some(mishap) = mishap {
            *state.happened.entry(mishap.name()).or_default() += 1;
        }
        (mishap, weather)
    }
}

impl Peer {
    async fn wait(&mut self, time: Duration) {
        self.flush().await;
        sleep(time).await;
    }

    /// Says what there is to say. The server goes on when nobody listens any more.
    async fn flush(&mut self) {
        let out = std::mem::take(&mut self.out);
        if self.is_mute {
            return;
        }
        let size = if self.trickles { 1 } else { out.len().max(1) };
        for bytes in out.chunks(size) {
            if self.stream.write_all(bytes).await.is_err() {
                return;
            }
            if self.trickles {
                yield_now().await;
            }
        }
    }
}
