//! What a process under test writes.

use std::io::{BufRead, BufReader, Read};
use std::sync::{Arc, Mutex, PoisonError};

/// Lines, gathered by a thread that ends with what it reads from.
pub struct Log(Arc<Mutex<Vec<String>>>);

impl Log {
    /// Reads to the end, in the background.
    pub fn follow(from: impl Read + Send + 'static) -> Self {
        let lines = Arc::new(Mutex::new(Vec::new()));
        let filled = Arc::clone(&lines);
        std::thread::spawn(move || {
            for line in BufReader::new(from).split(b'\n').map_while(Result::ok) {
                filled.lock().unwrap_or_else(PoisonError::into_inner).push(String::from_utf8_lossy(&line).into_owned());
            }
        });
        Self(lines)
    }

    /// The lines so far.
    pub fn lines(&self) -> Vec<String> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The lines so far, to be shown.
    pub fn text(&self) -> String {
        self.lines().join("\n")
    }
}
