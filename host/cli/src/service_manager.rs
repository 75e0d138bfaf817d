//! Notifications to the service manager, as systemd's sd_notify(3) defines them.

use std::ffi::OsString;
use std::io;
use std::os::unix::net::UnixDatagram;

/// The service manager that started this process, if it wants notifications.
pub(super) struct ServiceManager(Option<(UnixDatagram, OsString)>);

impl ServiceManager {
    /// Reads the path of the manager's socket from the environment variable `NOTIFY_SOCKET`.
    pub(super) fn from_environment() -> Self {
        let connect = |path: OsString| -> io::Result<_> {
            let socket = UnixDatagram::unbound()?;
            // A manager that does not read must not stop the service.
            socket.set_nonblocking(true)?;
            Ok((socket, path))
        };
        let socket = std::env::var_os("NOTIFY_SOCKET").map(connect).transpose();
        Self(
            socket
                .inspect_err(|error| tracing::warn!(%error, "the service manager is not notified"))
                .unwrap_or_default(),
        )
    }

    /// Sends assignments such as `READY=1`, one per line.
    pub(super) fn notify(&self, state: &str) {
        if let Some((socket, path)) = &self.0
            && let Err(error) = socket.send_to(state.as_bytes(), path)
        {
            tracing::warn!(socket = %path.display(), %error, "the service manager was not notified");
        }
    }
}
