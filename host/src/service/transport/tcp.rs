//! Devices on TCP, with or without TLS.

use std::sync::Arc;

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;

use super::super::worker::{TICK, Transport, WorkerHandle};
use super::byte_stream::converse;
use super::tls::Acceptor;

/// Connections of devices that one listener serves at a time.
pub const CONNECTIONS: usize = 20_000;

/// Serves devices on a listener for as long as the process lives.
pub async fn serve(listener: TcpListener, handle: WorkerHandle) {
    accept(listener, CONNECTIONS, move |stream| {
        let handle = handle.clone();
        async move {
            let (reader, writer) = stream.into_split();
            converse(reader, writer, &handle, Transport::TCP).await;
        }
    })
    .await;
}

/// Serves devices over TLS. A pending handshake counts as a connection and has a time limit.
pub async fn serve_tls(listener: TcpListener, acceptor: Acceptor, handle: WorkerHandle) {
    accept(listener, CONNECTIONS, move |stream| {
        let (handle, acceptor) = (handle.clone(), acceptor.clone());
        async move {
            if let Some(stream) = acceptor.accept(stream).await {
                let (reader, writer) = tokio::io::split(stream);
                converse(reader, writer, &handle, Transport::TLS).await;
            }
        }
    })
    .await;
}

/// Runs each new connection as a task, a limited number of them at a time; further ones are closed at once.
pub async fn accept<F: Future<Output = ()> + Send + 'static>(
    listener: TcpListener,
    limit: usize,
    run: impl Fn(TcpStream) -> F,
) {
    let room = Arc::new(Semaphore::new(limit));
    loop {
        // The peer has left already, or too many files are open: both pass.
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
