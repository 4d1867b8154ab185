//! A terminal with a program on it.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{LocalModes, Winsize, tcgetattr, tcsetwinsize};

use super::wait::{eventually, eventually_within};

/// What is written behind the last text of a program, whose reader may be behind.
const MARK: &str = "\u{1b}[end of the program]";

/// A terminal with a program on it.
pub struct Terminal {
    pub controller: File,
    /// Our end of what the program sees.
    pub device: File,
    screen: Arc<Mutex<String>>,
    pub child: Child,
}

impl Terminal {
    pub fn start(arguments: &[&str]) -> Self {
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
            .env("TERM", "xterm")
            .args(arguments)
            .stdin(end())
            .stdout(end())
            .stderr(end())
            .spawn()
            .expect("the binary runs");
        let controller = File::from(controller);
        let screen = Arc::<Mutex<String>>::default();
        let (mut from, to) = (
            controller.try_clone().expect("a descriptor"),
            Arc::clone(&screen),
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
            screen,
            child,
        }
    }

    pub fn screen(&self) -> String {
        self.screen.lock().expect("no panic").clone()
    }

    /// Waits until the program has shown a text so many times.
    pub fn wait_for(&self, text: &str, times: usize) {
        let seen = eventually_within(Duration::from_secs(30), || {
            (self.screen().matches(text).count() >= times).then_some(())
        });
        assert!(seen.is_some(), "{text}: {:?}", self.screen());
    }

    pub fn echoes(&self) -> bool {
        tcgetattr(&self.device)
            .expect("modes")
            .local_modes
            .contains(LocalModes::ECHO | LocalModes::ICANON)
    }

    /// Waits for the end of the program, and for all that it has shown. Returns its exit code.
    pub fn end(&mut self) -> Option<i32> {
        let status = eventually(|| self.child.try_wait().expect("a child"));
        self.device.write_all(MARK.as_bytes()).expect("a mark");
        self.wait_for(MARK, 1);
        let mut screen = self.screen.lock().expect("no panic");
        *screen = screen.replace(MARK, "");
        drop(screen);
        status.and_then(|status| status.code())
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
