//! A TCP proxy in front of each Redis server. It can cut the server off from its peers, which are
//! the other servers and the Sentinels. Clients still reach a server that is cut off.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

/// Starts the proxy of the server at `port`. As long as `cut` is true, no byte from or to a peer
/// passes. When `cut` becomes false, each peer's connection with a byte that was held back is
/// closed.
pub(super) async fn start(port: u16, server: u16, cut: Arc<AtomicBool>) -> anyhow::Result<()> {
    let listener = TcpListener::bind(("127.0.0.1", port)).await?;
    tokio::spawn(async move {
        loop {
            let Ok((client, _)) = listener.accept().await else {
                continue;
            };
            tokio::spawn(serve(client, server, Arc::clone(&cut)));
        }
    });
    Ok(())
}

/// Returns whether the first bytes of a connection are from a replica or a Sentinel. A replica
/// sends `PING` first, and a Sentinel first gives its connection a name with `sentinel-`.
fn is_peer(first: &[u8]) -> bool {
    let has = |text: &[u8]| first.windows(text.len()).any(|found| found == text);
    first.starts_with(b"*1\r\n$4\r\nPING") || has(b"sentinel-") || has(b"REPLCONF")
}

async fn serve(mut client: TcpStream, server: u16, cut: Arc<AtomicBool>) {
    let mut first = vec![0; 64 * 1024];
    let Ok(read @ 1..) = client.read(&mut first).await else {
        return;
    };
    let peer = is_peer(&first[..read]);
    while_cut(peer, &cut).await;
    let Ok(mut server) = TcpStream::connect(("127.0.0.1", server)).await else {
        return;
    };
    let _ = (client.set_nodelay(true), server.set_nodelay(true));
    if server.write_all(&first[..read]).await.is_err() {
        return;
    }
    if !peer {
        let _ = tokio::io::copy_bidirectional(&mut client, &mut server).await;
        return;
    }
    let (mut from_client, mut from_server) = (first, vec![0; 64 * 1024]);
    loop {
        let sent = tokio::select! {
            read = client.read(&mut from_client) => {
                let Ok(read @ 1..) = read else { return };
                if while_cut(true, &cut).await { return }
                server.write_all(&from_client[..read]).await
            }
            read = server.read(&mut from_server) => {
                let Ok(read @ 1..) = read else { return };
                if while_cut(true, &cut).await { return }
                client.write_all(&from_server[..read]).await
            }
        };
        if sent.is_err() {
            return;
        }
    }
}

/// Waits as long as `cut` is true, if this is the connection of a peer. Returns whether it had to
/// wait.
async fn while_cut(peer: bool, cut: &AtomicBool) -> bool {
    let was_cut = peer && cut.load(Ordering::SeqCst);
    while peer && cut.load(Ordering::SeqCst) {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    was_cut
}
