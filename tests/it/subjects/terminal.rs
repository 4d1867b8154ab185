//! `weir top` on a terminal: it refreshes, ends with q and with Ctrl-C, and leaves the terminal as
//! it was.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{LocalModes, Winsize, tcgetattr, tcsetwinsize};

use super::{LIMITS, hit};
use crate::support::Weir;
use crate::support::wait::{eventually, eventually_within};

/// A terminal with a program on it.
struct Terminal {
    controller: File,
    /// Our end of what the program sees.
    device: File,
    shown: Arc<Mutex<String>>,
    child: Child,
}

impl Terminal {
    fn start(arguments: &[&str]) -> Self {
        let controller = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).expect("a terminal");
        grantpt(&controller)
            .and_then(|()| unlockpt(&controller))
            .expect("ours");
        let name = ptsname(&controller, Vec::new())
            .expect("a name")
            .into_string()
            .expect("ASCII");
        // It must not become the terminal of this process, which would end with it.
        let flags = OpenptFlags::NOCTTY.bits().cast_signed();
        let device = File::options()
            .read(true)
            .write(true)
            .custom_flags(flags)
            .open(&name)
            .expect("the device");
        tcsetwinsize(
            &device,
            Winsize {
                ws_row: 12,
                ws_col: 80,
                ws_xpixel: 0,
                ws_ypixel: 0,
            },
        )
        .expect("a size");
        let end = || Stdio::from(OwnedFd::from(device.try_clone().expect("a descriptor")));
        let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
        let child = command
            .env_clear()
            .args(arguments)
            .stdin(end())
            .stdout(end())
            .stderr(end())
            .spawn()
            .expect("the binary runs");
        let controller = File::from(controller);
        let shown = Arc::<Mutex<String>>::default();
        let (mut from, to) = (
            controller.try_clone().expect("a descriptor"),
            Arc::clone(&shown),
        );
        std::thread::spawn(move || {
            let mut bytes = [0; 4_096];
            while let Ok(count @ 1..) = from.read(&mut bytes) {
                to.lock()
                    .expect("no panic")
                    .push_str(&String::from_utf8_lossy(&bytes[..count]));
            }
        });
        Self {
            controller,
            device,
            shown,
            child,
        }
    }

    fn shown(&self) -> String {
        self.shown.lock().expect("no panic").clone()
    }

    /// Waits until the program has shown a text so many times.
    fn wait_for(&self, text: &str, times: usize) {
        let seen = eventually_within(Duration::from_secs(30), || {
            (self.shown().matches(text).count() >= times).then_some(())
        });
        assert!(seen.is_some(), "{text}: {:?}", self.shown());
    }

    fn echoes(&self) -> bool {
        tcgetattr(&self.device)
            .expect("modes")
            .local_modes
            .contains(LocalModes::ECHO | LocalModes::ICANON)
    }

    fn end(&mut self) -> Option<i32> {
        eventually(|| self.child.try_wait().expect("a child")).and_then(|status| status.code())
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

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
        terminal.shown().starts_with(ENTER) && !terminal.echoes(),
        "{:?}",
        terminal.shown()
    );
    hit(client, "shop", &[("user", "bob\u{1b}[2J")], 3).await;
    terminal.wait_for("user=bob\\u{1b}[2J", 1);
    // A smaller terminal shows fewer lines, at once.
    let frames = terminal.shown().matches("\x1b[H").count();
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
        .shown()
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
        terminal.shown().ends_with(LEAVE) && terminal.echoes(),
        "{:?}",
        terminal.shown()
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
        terminal.shown().ends_with(LEAVE) && terminal.echoes(),
        "{:?}",
        terminal.shown()
    );
    // No service from the start: an error, and no other screen.
    let mut terminal = Terminal::start(&["top", "--admin", "127.0.0.1:1"]);
    assert_eq!(terminal.end(), Some(1));
    assert!(
        terminal.shown().contains("no service at 127.0.0.1:1") && !terminal.shown().contains(ENTER),
        "{:?}",
        terminal.shown()
    );
}
