#![expect(clippy::disallowed_methods, reason = "tests wait, and own their tasks")]

use std::fs;
use std::path::Path;

use tempfile::TempDir;
use tokio::runtime::Runtime;

use super::*;

const WAIT: Duration = Duration::from_secs(10);

fn limits(domain: &str) -> String {
    format!(
        "domain: {domain}\ndescriptors:\n- key: user\n  rate_limit: {{unit: minute, \
         requests_per_unit: 3}}\n"
    )
}

/// A folder that is watched.
struct Watching {
    folder: TempDir,
    live: Arc<Live>,
    metrics: Arc<Metrics>,
    runtime: Runtime,
}

fn options(path: &Path) -> Options {
    Options {
        path: path.to_owned(),
        ignore_dot_files: true,
        poll: Duration::from_millis(10),
        ..Options::default()
    }
}

fn watching(prepare: impl FnOnce(&Path)) -> Watching {
    let folder = tempfile::tempdir().unwrap();
    prepare(folder.path());
    let metrics = Metrics::new(1, 0.8);
    let live = Arc::new(Live::new(Arc::clone(&metrics)));
    let options = options(folder.path());
    let (watched, loaded) = load_once(&live, &options);
    loaded.unwrap();
    let runtime = started(watch(Arc::clone(&live), watched, Arc::clone(&metrics)));
    Watching {
        folder,
        live,
        metrics,
        runtime,
    }
}

/// A future that goes on until the runtime is dropped.
fn started(future: impl Future<Output = ()> + Send + 'static) -> Runtime {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap();
    runtime.block_on(async {
        tokio::spawn(future);
        tokio::task::yield_now().await;
    });
    runtime
}

impl Watching {
    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Writes a file at once: the watcher never finds a part of it.
    fn write(&self, name: &str, text: &str) {
        fs::write(self.path(".new"), text).unwrap();
        fs::rename(self.path(".new"), self.path(name)).unwrap();
    }

    fn domains(&self) -> Vec<String> {
        let snapshot = self.live.load().unwrap();
        let mut domains: Vec<_> = snapshot
            .rules
            .domains()
            .map(|domain| String::from_utf8_lossy(domain).into_owned())
            .collect();
        domains.sort();
        domains
    }

    #[track_caller]
    fn until(&self, holds: impl Fn(&Self) -> bool) {
        let start = Instant::now();
        while !holds(self) {
            assert!(
                start.elapsed() < WAIT,
                "in vain; domains {:?}, refusal {:?}",
                self.domains(),
                self.live.rejected()
            );
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    #[track_caller]
    fn until_domains(&self, domains: &[&str]) {
        self.until(|watching| watching.domains() == domains);
    }

    #[track_caller]
    fn until_refused(&self, what: &str) {
        self.until(|watching| {
            watching.live.rejected().is_some_and(|refusal| {
                refusal
                    .problems
                    .iter()
                    .any(|it| it.to_string().contains(what))
            })
        });
    }
}

#[test]
fn every_way_of_changing_a_folder_is_loaded() {
    let watching = watching(|folder| fs::write(folder.join("a.yaml"), limits("one")).unwrap());
    assert_eq!(watching.domains(), ["one"]);
    fs::write(watching.path("a.yaml"), limits("two")).unwrap();
    watching.until_domains(&["two"]);
    watching.write("a.yaml", &limits("three"));
    watching.until_domains(&["three"]);
    fs::create_dir(watching.path("more")).unwrap();
    fs::write(watching.path("more/b.yml"), limits("four")).unwrap();
    watching.until_domains(&["four", "three"]);
    fs::remove_file(watching.path("a.yaml")).unwrap();
    watching.until_domains(&["four"]);
    watching.until(|watching| {
        watching
            .metrics
            .encode()
            .contains("ratelimit_service_config_load_success 5\n")
    });
}

#[test]
fn a_folder_that_vanishes_or_is_emptied_changes_nothing() {
    let watching = watching(|folder| fs::write(folder.join("a.yaml"), limits("one")).unwrap());
    fs::remove_file(watching.path("a.yaml")).unwrap();
    watching.until_refused("no files of limits");
    fs::remove_dir(watching.folder.path()).unwrap();
    watching.until_refused("cannot be read");
    assert_eq!(watching.domains(), ["one"]);
    fs::create_dir(watching.folder.path()).unwrap();
    fs::write(watching.path("a.yaml"), limits("back")).unwrap();
    watching.until_domains(&["back"]);
}

#[test]
fn a_folder_without_files_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let problems = read(&options(folder.path())).unwrap_err();
    assert!(
        problems[0]
            .to_string()
            .contains("there are no files of limits"),
        "{}",
        problems[0]
    );
    fs::write(folder.path().join("a.yaml"), limits("one")).unwrap();
    assert_eq!(read(&options(folder.path())).unwrap().texts.len(), 1);
}

#[test]
fn a_bad_start_is_an_error_that_can_be_mended_while_it_runs() {
    let folder = tempfile::tempdir().unwrap();
    let options = options(&folder.path().join("later"));
    let live = Arc::new(Live::new(Metrics::new(1, 0.8)));
    let (watched, loaded) = load_once(&live, &options);
    let problems = loaded.unwrap_err();
    assert!(problems[0].to_string().contains("later"), "{problems:?}");
    assert!(live.load().is_none());
    let _runtime = started(watch(Arc::clone(&live), watched, Metrics::new(1, 0.8)));
    fs::create_dir(&options.path).unwrap();
    fs::write(options.path.join("a.yaml"), limits("one")).unwrap();
    let start = Instant::now();
    while live.load().is_none() {
        assert!(start.elapsed() < WAIT);
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_changed_file_is_read_once_and_a_folder_is_none() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("overlay.yaml");
    let open = |path: &Path| {
        let options = Options {
            poll: Duration::from_millis(1),
            ..Options::default()
        };
        let options = Options {
            path: path.to_owned(),
            ..options
        };
        WatchedFolder::open(options, |read| read.only(path))
    };
    let (mut file, missing) = open(&path);
    let poll = |file: &mut WatchedFolder, all| {
        std::thread::sleep(Duration::from_millis(2));
        file.poll(all, |read| read.only(&path))
    };
    assert!(missing.is_err() && poll(&mut file, false).is_none());
    for text in ["first", "second"] {
        fs::write(&path, text).expect("written");
        let read = (0..10)
            .find_map(|_| poll(&mut file, false))
            .expect("it has changed")
            .expect("readable");
        assert_eq!(read.text, text.as_bytes());
        assert!((0..10).all(|_| poll(&mut file, false).is_none()), "once");
        assert!(poll(&mut file, true).expect("it is asked for").is_ok());
    }
    fs::write(folder.path().join("other.yaml"), "x").expect("written");
    assert!(open(folder.path()).1.is_err());
}

#[test]
fn watching_ends_with_its_future() {
    let Watching {
        folder,
        live,
        runtime,
        ..
    } = watching(|folder| fs::write(folder.join("a.yaml"), limits("one")).unwrap());
    drop(runtime);
    let start = Instant::now();
    while Arc::strong_count(&live) > 1 {
        assert!(start.elapsed() < WAIT, "the thread goes on");
        std::thread::sleep(Duration::from_millis(5));
    }
    drop(folder);
}

#[test]
fn files_but_pages_and_backups_are_read_in_the_order_of_their_names() {
    let folder = tempfile::tempdir().unwrap();
    for name in [
        "c.yaml",
        "a.yaml",
        "b",
        "README",
        "README.md",
        "README.yaml",
        "limits.md",
        "a.yaml~",
        "b.bak",
        "c.yaml.swp",
        "swp",
        "bak",
    ] {
        fs::write(folder.path().join(name), name).unwrap();
    }
    let read = read(&options(folder.path())).unwrap();
    let texts: Vec<_> = read
        .texts
        .iter()
        .map(|source| (source.name.as_str(), source.text.as_slice()))
        .collect();
    let limits = ["README.yaml", "a.yaml", "b", "bak", "c.yaml", "swp"];
    assert_eq!(
        texts,
        limits.map(|name| (name, name.as_bytes())),
        "pages describe the folder, and editors leave backups"
    );
    assert_eq!(
        read.skipped,
        [
            "README",
            "README.md",
            "a.yaml~",
            "b.bak",
            "c.yaml.swp",
            "limits.md"
        ]
    );
}

/// A folder that was refused has no contents that could be loaded in place of half a file.
#[test]
fn after_a_refused_folder_no_half_file_is_loaded() {
    let folder = tempfile::tempdir().unwrap();
    let (file, link) = (folder.path().join("a.yaml"), folder.path().join("b.yaml"));
    fs::write(&file, limits("first")).unwrap();
    let options = Options {
        poll: Duration::from_secs(1),
        ..options(folder.path())
    };
    let texts = |read: &Read| -> Result<Vec<Vec<u8>>, Vec<Problem>> {
        Ok(read.texts.iter().map(|text| text.text.clone()).collect())
    };
    let (mut watched, _) = WatchedFolder::open(options, texts);
    std::os::unix::fs::symlink(folder.path().join("nowhere"), &link).unwrap();
    let start = Instant::now();
    while !matches!(watched.poll(false, texts), Some(Err(_))) {
        assert!(start.elapsed() < 3 * WAIT, "a link to nowhere is refused");
        std::thread::sleep(Duration::from_millis(50));
    }
    fs::remove_file(&link).unwrap();
    // Longer than a poll, and shorter than the time after which it is loaded as it is.
    for number in 0..30 {
        fs::write(&file, format!("domain: half{number}\n")).unwrap();
        let loaded = watched.poll(false, texts);
        std::thread::sleep(Duration::from_millis(50));
        assert!(loaded.is_none(), "{number}: {loaded:?}");
    }
    fs::write(&file, limits("whole")).unwrap();
    let loaded = loop {
        if let Some(loaded) = watched.poll(false, texts) {
            break loaded.unwrap();
        }
        assert!(start.elapsed() < 6 * WAIT);
        std::thread::sleep(Duration::from_millis(50));
    };
    assert_eq!(loaded, [limits("whole").into_bytes()]);
}
