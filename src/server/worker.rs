//! Workers: one thread with a current-thread runtime per core, each owning its connections, its store connections and its tallies.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::runtime::Builder;
use tokio::sync::{OwnedSemaphorePermit, mpsc, watch};
use tokio::task::JoinSet;

use super::Options;
use super::backlog::Backlog;
use super::connection::{self, Phase, Shared};
use super::dispatch::Services;
use crate::rls::ShouldRateLimit;

/// Connections that a worker has been handed and not yet looked at.
const WAITING: usize = 1_024;

/// A connection on its way to a worker.
#[derive(Debug)]
pub struct Job {
    /// The accepted socket, non-blocking.
    pub stream: std::net::TcpStream,
    /// Its place among all open connections, given back when it closes.
    pub permit: OwnedSemaphorePermit,
}

/// The threads.
#[derive(Debug)]
pub struct Workers {
    queues: Vec<mpsc::Sender<Job>>,
    threads: std::sync::Mutex<Vec<JoinHandle<()>>>,
    next: AtomicUsize,
    phase: watch::Sender<Phase>,
}

impl Workers {
    /// Starts `count` threads. `services` is called on each of them, inside its runtime, with its number from 0.
    ///
    /// # Errors
    /// The operating system's, when there is no thread or no event queue to be had.
    pub fn start<T, F>(count: usize, options: Options, services: F) -> io::Result<Self>
    where
        T: ShouldRateLimit,
        F: Fn(usize) -> Services<T> + Clone + Send + 'static,
    {
        let (phase, _) = watch::channel(Phase::Serving);
        let mut queues = Vec::with_capacity(count);
        let mut threads = Vec::with_capacity(count);
        for index in 0..count {
            let backlog = Arc::new(Backlog::new(options.sheds_load));
            let runtime = watched(&backlog).build()?;
            let (queue, jobs) = mpsc::channel(WAITING);
            let (services, phase) = (services.clone(), phase.subscribe());
            let run = move || {
                runtime.block_on(async { work(jobs, Shared::new(services(index), backlog, options), phase).await });
                // Does not wait for a name that is being looked up, which may take longer than a pod has to end.
                runtime.shutdown_background();
            };
            threads.push(std::thread::Builder::new().name(format!("weir-{index}")).spawn(run)?);
            queues.push(queue);
        }
        Ok(Self { queues, threads: threads.into(), next: AtomicUsize::new(0), phase })
    }

    /// Hands a connection to the next worker in turn, or the one after it while a queue is full. False: nobody took it.
    pub fn give(&self, job: Job) -> bool {
        let first = self.next.fetch_add(1, Ordering::Relaxed);
        let mut job = Some(job);
        for offset in 0..self.queues.len() {
            let Some(waiting) = job.take() else { return true };
            match self.queues[first.wrapping_add(offset) % self.queues.len()].try_send(waiting) {
                Ok(()) => return true,
                Err(mpsc::error::TrySendError::Full(back) | mpsc::error::TrySendError::Closed(back)) => job = Some(back),
            }
        }
        job.is_none()
    }

    /// Asks every connection to end, waits for what is in flight for at most `patience`, and ends the threads. Blocks.
    pub fn drain(&self, patience: Duration) {
        self.phase.send_replace(Phase::Ending { patience });
        let threads = std::mem::take(&mut *self.threads.lock().unwrap_or_else(std::sync::PoisonError::into_inner));
        for thread in threads {
            if thread.join().is_err() {
                tracing::error!("a worker ended in a panic");
            }
        }
    }
}

/// A runtime that tells when it waits for something to do.
fn watched(backlog: &Arc<Backlog>) -> Builder {
    let (parks, unparks) = (Arc::clone(backlog), Arc::clone(backlog));
    let mut builder = Builder::new_current_thread();
    builder.enable_all().on_thread_park(move || parks.parks()).on_thread_unpark(move || unparks.unparks());
    builder
}

async fn work<T: ShouldRateLimit>(mut jobs: mpsc::Receiver<Job>, shared: Shared<T>, phase: watch::Receiver<Phase>) {
    let shared = Arc::new(shared);
    let mut connections = JoinSet::new();
    let mut end = phase.clone();
    let patience = loop {
        tokio::select! {
            Some(job) = jobs.recv() => {
                drop(connections.spawn(connection::serve(job, Arc::clone(&shared), phase.clone())));
            }
            Some(_) = connections.join_next() => {}
            patience = connection::ending(&mut end) => break patience,
        }
    };
    let _ = tokio::time::timeout(patience, async { while connections.join_next().await.is_some() {} }).await;
}
