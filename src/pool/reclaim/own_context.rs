//! The context in which a pool makes its driver calls.

use crate::driver::{Context, RelaxedMode, Result};
use crate::pool::driver_calls::{DriverCalls, Identity};

/// The context in which a pool makes its driver calls when no context of the device is current.
#[derive(Debug, Clone, Copy)]
pub struct OwnContext {
    /// The context.
    pub context: Context,
    /// What tells it from a later one.
    pub identity: Identity,
    /// The context is the device's primary context, and the pool has retained it.
    pub primary: bool,
}

impl OwnContext {
    /// Retains the device's primary context and returns it.
    pub fn primary(calls: &DriverCalls, device: i32) -> Result<OwnContext> {
        let context = calls.submit(|driver| driver.primary_retain(device))?;
        let identity = calls.identity(context).inspect_err(|_| {
            let _ = calls.submit(|driver| driver.primary_release(device));
        })?;
        Ok(OwnContext {
            context,
            identity,
            primary: true,
        })
    }

    /// Releases the primary context, if the pool has retained it.
    pub fn release(&self, calls: &DriverCalls, device: i32) {
        if self.primary {
            let _relaxed = RelaxedMode::begin(calls.driver());
            let _ = calls.submit(|driver| driver.primary_release(device));
        }
    }

    /// The current context if it is of `device` and is not the primary context; otherwise the primary context,
    /// retained.
    pub fn find(calls: &DriverCalls, device: i32) -> Result<OwnContext> {
        let here = calls.query(|driver| driver.current_device()).unwrap_or(None) == Some(device);
        let current = if here {
            calls.query(|driver| driver.current_context())?
        } else {
            None
        };
        // A primary context costs device memory. While it is not active, the application's own context is used instead.
        match current {
            Some(context) if !calls.query(|driver| driver.primary_active(device))? => Ok(OwnContext {
                context,
                identity: calls.identity(context)?,
                primary: false,
            }),
            _ => OwnContext::primary(calls, device),
        }
    }
}
