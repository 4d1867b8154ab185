//! Processes of compose.yaml without containers: one network of their own for all, and for each a
//! root folder with what its service mounts.
//!
//! In that network the name of each service has an address of its own (127.0.0.2 and so on). So a
//! process that listens on 127.0.0.1 only is not found by its name, as in a network of containers.

use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::{fs, io};

use tempfile::TempDir;

use crate::deploy::image::is_root;
use crate::support::log::Log;

/// Sets the loopback interface up, which a new network has but does not use, and stays until its
/// input ends. Source of the numbers: netdevice(7), SIOCSIFFLAGS and IFF_UP.
const NETWORK: &str = "import fcntl, socket, struct, sys
fcntl.ioctl(socket.socket(), 0x8914, struct.pack('16sH22x', b'lo', 1))
print('up', flush=True)
sys.stdin.read()";

/// Mounts pairs of files or folders, the second of each below the root folder, then becomes the
/// command that follows `--`.
const MOUNTS: &str = "root=$1; shift
while [ \"$1\" != -- ]; do mount --rbind \"$1\" \"$root$2\"; shift 2; done
shift
exec chroot $USERSPEC \"$root\" \"$@\" >&2";

/// Folders of this machine that its programs need.
const SYSTEM: [&str; 7] = ["bin", "lib", "lib64", "sbin", "usr", "dev", "proc"];

/// Where programs are found in a root folder.
const PATH: &str = "/programs:/usr/local/bin:/usr/bin:/bin";

/// A network in which every service has its name.
pub(super) struct Network {
    holder: Child,
    hosts: String,
}

impl Network {
    pub(super) fn new(names: &[&str]) -> Self {
        let mut unshare = Command::new("unshare");
        if !is_root() {
            unshare.arg("--map-root-user");
        }
        unshare
            .args(["--net", "python3", "-c", NETWORK])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut holder = unshare.spawn().expect("unshare runs");
        let mut line = String::new();
        let read = BufReader::new(holder.stdout.take().expect("it is piped")).read_line(&mut line);
        assert!(read.is_ok() && line == "up\n", "no network: {line:?}");
        let named = names
            .iter()
            .enumerate()
            .map(|(index, name)| format!("127.0.0.{} {name}\n", index + 2));
        Self {
            holder,
            hosts: std::iter::once("127.0.0.1 localhost\n".to_owned())
                .chain(named)
                .collect(),
        }
    }

    /// Runs a shell line in the network, as on a machine whose ports lead into it.
    pub(super) fn shell(&self, line: &str) -> Output {
        Self::enter(&self.holder, &["--net"])
            .args(["sh", "-c", line])
            .output()
            .expect("a shell")
    }

    /// A command that runs in these namespaces of a process; its arguments follow.
    fn enter(process: &Child, namespaces: &[&str]) -> Command {
        let mut nsenter = Command::new("nsenter");
        nsenter
            .arg(format!("--target={}", process.id()))
            .args(namespaces);
        if !is_root() {
            nsenter.args(["--user", "--preserve-credentials"]);
        }
        nsenter
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        end(&mut self.holder);
    }
}

/// What a container starts from.
pub(super) struct Image {
    root: PathBuf,
    mounts: Vec<(PathBuf, String)>,
    folder: TempDir,
}

impl Image {
    /// A root folder that is filled already.
    pub(super) fn of(folder: TempDir, root: PathBuf) -> Self {
        Self {
            root,
            mounts: Vec::new(),
            folder,
        }
    }

    /// This machine's programs and libraries, with the one that an image would bring under its
    /// name.
    pub(super) fn with_program(name: &str, program: &Path) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let root = folder.path().join("root");
        fs::create_dir_all(root.join("etc")).expect("a folder");
        let mut image = Self::of(folder, root);
        for name in SYSTEM {
            let system = Path::new("/").join(name);
            match fs::read_link(&system) {
                Ok(target) => {
                    std::os::unix::fs::symlink(target, image.root.join(name)).expect("a link");
                }
                Err(_) if system.is_dir() => {
                    image.mount(system, format!("/{name}")).expect("a mount");
                }
                Err(_) => {}
            }
        }
        image
            .mount(program.to_owned(), format!("/programs/{name}"))
            .expect("a mount");
        image
    }

    /// Mounts a file or folder, for which it makes one in the root folder.
    pub(super) fn mount(&mut self, source: PathBuf, target: String) -> io::Result<()> {
        let inside = self.root.join(target.trim_start_matches('/'));
        if source.is_dir() {
            fs::create_dir_all(&inside)?;
        } else {
            fs::create_dir_all(inside.parent().expect("a folder"))?;
            fs::File::create(&inside)?;
        }
        self.mounts.push((source, target));
        Ok(())
    }

    /// Makes a folder that any user may write to.
    pub(super) fn writable(&self, folder: &str) -> io::Result<()> {
        let inside = self.root.join(folder.trim_start_matches('/'));
        fs::create_dir_all(&inside)?;
        fs::set_permissions(&inside, fs::Permissions::from_mode(0o777))
    }
}

/// A process in the root folder of its image.
pub(super) struct Container {
    child: Child,
    log: Log,
    name: String,
    environment: Vec<(String, String)>,
    _folder: TempDir,
}

impl Container {
    /// Starts a command with these variables only, as `user`, which is `ID:ID`; or as the current
    /// user where that is not permitted.
    pub(super) fn start(
        network: &Network,
        name: &str,
        image: Image,
        user: &str,
        environment: Vec<(String, String)>,
        command: &[String],
    ) -> Self {
        fs::write(image.root.join("etc/hosts"), &network.hosts).expect("written");
        let mut entered = Network::enter(&network.holder, &["--net"]);
        entered
            .args(["unshare", "--mount", "sh", "-ec", MOUNTS, "sh"])
            .arg(&image.root);
        for (source, target) in &image.mounts {
            entered.arg(source).arg(target);
        }
        entered
            .arg("--")
            .args(command)
            .env_clear()
            .env("PATH", format!("{PATH}:/usr/sbin:/sbin"));
        entered.env(
            "USERSPEC",
            if is_root() {
                format!("--userspec={user}")
            } else {
                String::new()
            },
        );
        entered.envs(environment.iter().map(|(name, value)| (name, value)));
        let mut child = entered
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("nsenter runs");
        let log = Log::follow(child.stderr.take().expect("it is piped"));
        Self {
            child,
            log,
            name: name.to_owned(),
            environment,
            _folder: image.folder,
        }
    }

    /// Runs a command beside the process, as a health check does.
    pub(super) fn execute(&self, command: &[String]) -> Output {
        let mut entered = Network::enter(&self.child, &["--net", "--mount", "--root", "--wd"]);
        entered.args(command).env_clear().env("PATH", PATH);
        entered
            .envs(self.environment.iter().map(|(name, value)| (name, value)))
            .output()
            .expect("nsenter runs")
    }

    /// Panics when the process has ended.
    pub(super) fn assert_runs(&mut self) {
        let ended = self.child.try_wait().expect("a child can be waited for");
        assert!(
            ended.is_none(),
            "{} ended with {ended:?}:\n{}",
            self.name,
            self.log.text()
        );
    }

    /// What the process printed so far.
    pub(super) fn log(&self) -> String {
        self.log.text()
    }
}

impl Drop for Container {
    fn drop(&mut self) {
        end(&mut self.child);
        // The test runner shows it only when the test fails.
        println!("-- log of {}\n{}", self.name, self.log.text());
    }
}

/// Both fail only when the process has ended already.
fn end(child: &mut Child) {
    let _ = child.kill();
    let _ = child.wait();
}
