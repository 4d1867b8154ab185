//! The log of a process under test.

use std::io::{BufRead, BufReader, Read};
use std::sync::{Arc, Mutex, PoisonError};

/// Lines, which a thread collects until the end of the stream.
pub struct Log(Arc<Mutex<Vec<String>>>);

impl Log {
    /// Reads a stream to its end, on a new thread.
    pub fn follow(from: impl Read + Send + 'static) -> Self {
        let lines = Arc::new(Mutex::new(Vec::new()));
        let filled = Arc::clone(&lines);
        std::thread::spawn(move || {
            for line in BufReader::new(from).split(b'\n').map_while(Result::ok) {
                filled
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .push(String::from_utf8_lossy(&line).into_owned());
            }
        });
        Self(lines)
    }

    /// The lines so far.
    pub fn lines(&self) -> Vec<String> {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// The lines so far, as one text.
    pub fn text(&self) -> String {
        self.lines().join("\n")
    }
}
