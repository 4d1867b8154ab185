//! Workers: one thread with a current-thread runtime per core, each owning its client connections,
//! its connections to Redis and its row of counters.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::runtime::Builder;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;

use super::Options;
use super::client_errors::ClientErrorLog;
use super::connection::{self, Draining, NewConnection, WorkerState};
use super::dispatch::{LimitServices, Services};
use crate::core::lock;

/// Maximum number of accepted connections that wait for their worker.
const MAX_WAITING_CONNECTIONS: usize = 1_024;

/// The worker threads and their queues of new connections.
#[derive(Debug)]
pub struct Workers {
    queues: Vec<mpsc::Sender<NewConnection>>,
    threads: std::sync::Mutex<Vec<JoinHandle<()>>>,
    next: AtomicUsize,
    draining: watch::Sender<Option<Duration>>,
}

impl Workers {
    /// Starts `count` threads. `services` is called on each of them, inside its runtime, with its
    /// index from 0.
    ///
    /// # Errors
    /// The operating system cannot create a thread or an event queue.
    pub fn start<T, F>(count: usize, options: Options, services: F) -> io::Result<Self>
    where
        T: LimitServices,
        F: Fn(usize) -> Services<T> + Clone + Send + 'static,
    {
        let (draining, _) = watch::channel(None);
        let mut queues = Vec::with_capacity(count);
        let mut threads = Vec::with_capacity(count);
        let error_log = Arc::<ClientErrorLog>::default();
        for index in 0..count {
            let runtime = Builder::new_current_thread().enable_all().build()?;
            let (queue, incoming) = mpsc::channel(MAX_WAITING_CONNECTIONS);
            let (services, draining) = (services.clone(), draining.subscribe());
            let error_log = Arc::clone(&error_log);
            let run = move || {
                let state = |services| WorkerState::new(index, services, error_log, options);
                runtime.block_on(async { work(incoming, state(services(index)), draining).await });
                // Does not wait for a DNS lookup, which may exceed the termination grace period of
                // a Kubernetes pod.
                runtime.shutdown_background();
            };
            let thread = std::thread::Builder::new().name(format!("weir-{index}"));
            threads.push(thread.spawn(run)?);
            queues.push(queue);
        }
        Ok(Self {
            queues,
            threads: threads.into(),
            next: AtomicUsize::new(0),
            draining,
        })
    }

    /// The number of workers.
    pub(super) fn count(&self) -> usize {
        self.queues.len()
    }

    /// Hands a connection to the next worker in turn, or to the one after it while a queue is full.
    /// False: all queues are full, and the connection is closed.
    pub(super) fn assign(&self, mut connection: NewConnection) -> bool {
        let first = self.next.fetch_add(1, Ordering::Relaxed);
        for offset in 0..self.queues.len() {
            let queue = &self.queues[first.wrapping_add(offset) % self.queues.len()];
            match queue.try_send(connection) {
                Ok(()) => return true,
                Err(error) => connection = error.into_inner(),
            }
        }
        false
    }

    /// Asks every connection to end, waits at most `grace` for requests in flight, and ends the
    /// threads. Blocks.
    pub fn drain(&self, grace: Duration) {
        self.draining.send_replace(Some(grace));
        let threads = std::mem::take(&mut *lock(&self.threads));
        for thread in threads {
            if thread.join().is_err() {
                tracing::error!("worker panicked");
            }
        }
    }
}

async fn work<T: LimitServices>(
    mut incoming: mpsc::Receiver<NewConnection>,
    state: WorkerState<T>,
    draining: Draining,
) {
    let state = Arc::new(state);
    let mut connections = JoinSet::new();
    let mut overload = JoinSet::new();
    let waiting = Arc::clone(&state.overload);
    overload.spawn(async move { waiting.serve_waiting().await });
    let mut drained = draining.clone();
    let grace = loop {
        tokio::select! {
            Some(connection) = incoming.recv() => {
                drop(connections.spawn(connection::serve(connection, Arc::clone(&state), draining.clone())));
            }
            Some(_) = connections.join_next() => {}
            grace = connection::draining(&mut drained) => break grace,
        }
    };
    let _ = tokio::time::timeout(grace, async {
        while connections.join_next().await.is_some() {}
    })
    .await;
}
