//! Devices on TCP, also with TLS.

use std::sync::Arc;

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;

use super::super::worker::{TICK, WorkerHandle};
use super::byte_stream::converse;
use super::tls::Acceptor;

/// Connections at a time, on one listener.
const CONNECTIONS: usize = 20_000;

/// Serves devices on a listener for as long as the process lives.
pub async fn serve(listener: TcpListener, handle: WorkerHandle) {
    accept(listener, move |stream| {
        let handle = handle.clone();
        async move {
            let (reader, writer) = stream.into_split();
            converse(reader, writer, &handle, false).await;
        }
    })
    .await;
}

/// The same with TLS. A handshake counts as a connection, and has a time limit.
pub async fn serve_tls(listener: TcpListener, acceptor: Acceptor, handle: WorkerHandle) {
    accept(listener, move |stream| {
        let (handle, acceptor) = (handle.clone(), acceptor.clone());
        async move {
            if let Some(stream) = acceptor.accept(stream).await {
                let (reader, writer) = tokio::io::split(stream);
                converse(reader, writer, &handle, false).await;
            }
        }
    })
    .await;
}

/// Runs each new connection as a task, a limited number of them at a time.
pub async fn accept<F: Future<Output = ()> + Send + 'static>(listener: TcpListener, run: impl Fn(TcpStream) -> F) {
    let room = Arc::new(Semaphore::new(CONNECTIONS));
    loop {
        // A peer that is gone again, or too many open files: nothing that a pause does not mend.
        let Ok((stream, _)) = listener.accept().await else {
            tokio::time::sleep(TICK).await;
            continue;
        };
        let Ok(permit) = Arc::clone(&room).try_acquire_owned() else { continue };
        let _ = stream.set_nodelay(true);
        let connection = run(stream);
        tokio::spawn(async move {
            connection.await;
            drop(permit);
        });
    }
}
