//! The terminal while `weir top` refreshes its table: the other screen, no echo, and all of it
//! restored in the end, however it ends.

use std::io::{self, IsTerminal, Read, Write};

use anyhow::Context;
use rustix::termios::{
    LocalModes, OptionalActions, SpecialCodeIndex, Termios, tcgetattr, tcgetwinsize, tcsetattr,
};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout_at};

/// The other screen, without a cursor, with long lines cut at the edge (ECMA-48 and xterm's control
/// sequences).
const ENTER: &str = "\x1b[?1049h\x1b[?25l\x1b[?7l";
const LEAVE: &str = "\x1b[?7h\x1b[?25h\x1b[?1049l";

/// The first cell; from the cursor to the end of its line; from the cursor to the end of the
/// screen.
const HOME: &str = "\x1b[H";
const CLEAR_LINE: &str = "\x1b[K";
const CLEAR_REST: &str = "\x1b[J";

/// Rows of a terminal whose size is unknown.
const USUAL_ROWS: usize = 24;

/// An event on the terminal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ScreenEvent {
    /// q or Ctrl-C was pressed, or the process is to end.
    Quit,
    /// The terminal has another size.
    Resized,
}

/// The screen; dropping it restores the terminal.
pub(super) struct Screen {
    events: mpsc::Receiver<ScreenEvent>,
    /// The modes of the terminal before; `None`: its keys are not read, because stdin is something
    /// else.
    before: Option<Termios>,
}

impl Screen {
    /// Takes the terminal of stdout.
    ///
    /// # Errors
    /// The operating system gives no signals, or the terminal cannot be written.
    #[expect(
        clippy::disallowed_methods,
        reason = "these tasks end with the command"
    )]
    pub(super) fn open() -> anyhow::Result<Self> {
        let (sender, events) = mpsc::channel(1);
        for (kind, event) in [
            (SignalKind::interrupt(), ScreenEvent::Quit),
            (SignalKind::terminate(), ScreenEvent::Quit),
            (SignalKind::hangup(), ScreenEvent::Quit),
            (SignalKind::window_change(), ScreenEvent::Resized),
        ] {
            let mut signal = signal(kind).context("signals cannot be received")?;
            let sender = sender.clone();
            tokio::spawn(async move {
                while signal.recv().await.is_some() && sender.send(event).await.is_ok() {}
            });
        }
        let before = read_keys(sender);
        let screen = Self { events, before };
        write(ENTER)?;
        Ok(screen)
    }

    /// The next event; `None` at that instant.
    pub(super) async fn event_before(&mut self, at: Instant) -> Option<ScreenEvent> {
        timeout_at(at, self.events.recv()).await.ok().flatten()
    }

    /// Returns when the screen is to be left.
    pub(super) async fn quit(&mut self) {
        while self.events.recv().await == Some(ScreenEvent::Resized) {}
    }
}

/// Shows the lines that fit.
///
/// # Errors
/// The terminal cannot be written.
pub(super) fn show(text: &str) -> anyhow::Result<()> {
    let rows = tcgetwinsize(io::stdout()).map_or(USUAL_ROWS, |size| usize::from(size.ws_row));
    write(&frame(text, if rows == 0 { USUAL_ROWS } else { rows }))
}

impl Drop for Screen {
    fn drop(&mut self) {
        let _ = write(LEAVE);
        if let Some(before) = &self.before {
            let _ = tcsetattr(io::stdin(), OptionalActions::Flush, before);
        }
    }
}

/// Reads keys at once and without an echo, on a thread that ends with the process. Ctrl-C stays a
/// signal; Ctrl-Z would leave the terminal as it is now.
fn read_keys(events: mpsc::Sender<ScreenEvent>) -> Option<Termios> {
    let stdin = io::stdin();
    if !stdin.is_terminal() {
        return None;
    }
    let before = tcgetattr(&stdin).ok()?;
    let mut modes = before.clone();
    modes.local_modes -= LocalModes::ICANON | LocalModes::ECHO;
    modes.special_codes[SpecialCodeIndex::VSUSP] = 0;
    tcsetattr(&stdin, OptionalActions::Now, &modes).ok()?;
    let read = move || {
        let mut keys = [0; 64];
        // The end of the terminal ends the command too.
        while let Ok(count @ 1..) = io::stdin().lock().read(&mut keys) {
            if keys[..count].iter().any(|key| b"qQ\x03".contains(key)) {
                break;
            }
        }
        let _ = events.blocking_send(ScreenEvent::Quit);
    };
    let thread = std::thread::Builder::new().name("keys".to_owned());
    if thread.spawn(read).is_err() {
        let _ = tcsetattr(&stdin, OptionalActions::Now, &before);
        return None;
    }
    Some(before)
}

/// A frame of so many rows, the last of which stays empty.
fn frame(text: &str, rows: usize) -> String {
    let lines = text.lines().take(rows.saturating_sub(1));
    let lines = lines.map(|line| format!("{line}{CLEAR_LINE}\r\n"));
    format!("{HOME}{}{CLEAR_REST}", lines.collect::<String>())
}

fn write(text: &str) -> anyhow::Result<()> {
    let mut stdout = io::stdout().lock();
    let written = stdout.write_all(text.as_bytes());
    let written = written.and_then(|()| stdout.flush());
    written.context("the terminal cannot be written")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_has_the_lines_that_fit() {
        assert_eq!(frame("a\nb\nc\n", 3), "\x1b[Ha\x1b[K\r\nb\x1b[K\r\n\x1b[J");
        assert_eq!(frame("a\n", 24), "\x1b[Ha\x1b[K\r\n\x1b[J");
        assert_eq!(frame("a\n", 0), "\x1b[H\x1b[J");
    }
}
