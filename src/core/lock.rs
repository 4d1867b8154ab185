//! Locking a mutex, whatever became of the threads that held it.
//!
//! The data in a mutex is whole wherever a panic may happen: it is replaced by one assignment, or
//! changed by code that cannot panic. So poisoning has no meaning, and is ignored.

use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

/// Locks a mutex, poisoned or not.
pub fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Locks a mutex, poisoned or not, unless another thread has locked it.
pub fn try_lock<T: ?Sized>(mutex: &Mutex<T>) -> Option<MutexGuard<'_, T>> {
    match mutex.try_lock() {
        Ok(guard) => Some(guard),
        Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}
