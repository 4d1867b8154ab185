//! `weir top` on a terminal: it refreshes, ends with q and with Ctrl-C, and leaves the terminal as
//! it was.

use std::io::Write;

use rustix::termios::{Winsize, tcsetwinsize};

use super::{LIMITS, hit};
use crate::support::Weir;
use crate::support::terminal::Terminal;

const ENTER: &str = "\x1b[?1049h";
const LEAVE: &str = "\x1b[?25h\x1b[?1049l";

#[tokio::test(flavor = "multi_thread")]
async fn the_table_is_refreshed_until_q() {
    let weir = Weir::start(LIMITS, &[]);
    let client = &mut weir.client().await;
    hit(client, "shop", &[("user", "ann")], 2).await;
    let mut terminal = Terminal::start(&["top", "--admin", &weir.listener("debug").to_string()]);
    terminal.wait_for("user=ann", 1);
    assert!(
        terminal.screen().starts_with(ENTER) && !terminal.echoes(),
        "{:?}",
        terminal.screen()
    );
    hit(client, "shop", &[("user", "bob\u{1b}[2J")], 3).await;
    terminal.wait_for("user=bob\\u{1b}[2J", 1);
    // A smaller terminal shows fewer lines, at once.
    let frames = terminal.screen().matches("\x1b[H").count();
    tcsetwinsize(
        &terminal.device,
        Winsize {
            ws_row: 3,
            ws_col: 80,
            ws_xpixel: 0,
            ws_ypixel: 0,
        },
    )
    .expect("a size");
    rustix::process::kill_process(
        rustix::process::Pid::from_child(&terminal.child),
        rustix::process::Signal::WINCH,
    )
    .expect("a signal");
    terminal.wait_for("\x1b[H", frames + 1);
    let last = terminal
        .screen()
        .rsplit("\x1b[H")
        .next()
        .expect("a frame")
        .to_owned();
    assert!(
        last.contains("SUBJECT") && !last.contains("user="),
        "{last:?}"
    );
    terminal.controller.write_all(b"xq").expect("keys");
    assert_eq!(terminal.end(), Some(0));
    assert!(
        terminal.screen().ends_with(LEAVE) && terminal.echoes(),
        "{:?}",
        terminal.screen()
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_signal_and_a_lost_service_leave_the_terminal_as_it_was() {
    let mut weir = Weir::start(LIMITS, &[("DRAIN_DELAY", "0")]);
    let mut terminal = Terminal::start(&["top", "--admin", &weir.listener("debug").to_string()]);
    terminal.wait_for("0 hits in the last", 1);
    // The service ends: the screen says so and goes on.
    weir.terminate();
    terminal.wait_for("no service at", 1);
    rustix::process::kill_process(
        rustix::process::Pid::from_child(&terminal.child),
        rustix::process::Signal::INT,
    )
    .expect("a signal");
    assert_eq!(terminal.end(), Some(0));
    assert!(
        terminal.screen().ends_with(LEAVE) && terminal.echoes(),
        "{:?}",
        terminal.screen()
    );
    // No service from the start: an error, and no other screen.
    let mut terminal = Terminal::start(&["top", "--admin", "127.0.0.1:1"]);
    assert_eq!(terminal.end(), Some(1));
    assert!(
        terminal.screen().contains("no service at 127.0.0.1:1")
            && !terminal.screen().contains(ENTER),
        "{:?}",
        terminal.screen()
    );
}
