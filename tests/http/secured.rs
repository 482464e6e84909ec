//! TLS: the sink with a private authority and HTTP/2, and `seriatim serve` with a certificate.

use std::collections::HashSet;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Empty};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{Request, Response, Version};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio_rustls::TlsAcceptor;

use crate::certificates::{Authority, Certificate};
use crate::requests::sink;
use crate::support::Redis;
use crate::support::running::start;

/// The HTTP versions and bodies of the requests that a server got, by connection.
pub(crate) type Got = Arc<Mutex<Vec<(usize, Version, Bytes)>>>;

/// Starts a server with TLS that offers these protocols and accepts everything.
pub(crate) async fn receiver(certificate: &Certificate, protocols: &[&str]) -> (u16, Got) {
    let (listener, port) = listen().await;
    let (_, got) = serve(listener, certificate, protocols, 200, Duration::ZERO);
    (port, got)
}

/// Listens on a free port.
pub(crate) async fn listen() -> (TcpListener, u16) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let port = listener.local_addr().expect("an address").port();
    (listener, port)
}

/// Accepts everything on this listener, over TLS. `streams`: the requests that an HTTP/2 connection
/// takes at a time. `delay`: the time before each answer. If the task is aborted, its connections
/// stay.
pub(crate) fn serve(
    listener: TcpListener,
    certificate: &Certificate,
    protocols: &[&str],
    streams: u32,
    delay: Duration,
) -> (JoinHandle<()>, Got) {
    let chain: Vec<_> = CertificateDer::pem_file_iter(&certificate.certificate)
        .expect("a file")
        .map(|one| one.expect("one"))
        .collect();
    let key = PrivateKeyDer::from_pem_file(&certificate.key).expect("a key");
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("versions");
    let mut config = config
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .expect("a pair");
    config.alpn_protocols = protocols
        .iter()
        .map(|name| name.as_bytes().to_vec())
        .collect();
    let (acceptor, got) = (TlsAcceptor::from(Arc::new(config)), Got::default());
    let seen = got.clone();
    let task = tokio::spawn(async move {
        for connection in 0.. {
            let Ok((stream, _)) = listener.accept().await else {
                return;
            };
            let (acceptor, seen) = (acceptor.clone(), seen.clone());
            tokio::spawn(async move {
                let Ok(stream) = acceptor.accept(stream).await else {
                    return;
                };
                let is_h2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
                let service = service_fn(move |request: Request<Incoming>| {
                    let seen = seen.clone();
                    async move {
                        let version = request.version();
                        let body = request.into_body().collect().await?.to_bytes();
                        seen.lock()
                            .expect("no panic")
                            .push((connection, version, body));
                        tokio::time::sleep(delay).await;
                        Ok::<_, hyper::Error>(Response::new(Empty::<Bytes>::new()))
                    }
                });
                let _ = match is_h2 {
                    true => {
                        hyper::server::conn::http2::Builder::new(TokioExecutor::new())
                            .max_concurrent_streams(streams)
                            .serve_connection(TokioIo::new(stream), service)
                            .await
                    }
                    false => {
                        hyper::server::conn::http1::Builder::new()
                            .serve_connection(TokioIo::new(stream), service)
                            .await
                    }
                };
            });
        }
    });
    (task, got)
}

async fn deliver(redis: &Redis, url: &str, ca_file: &Path, got: &Got) -> (usize, Version) {
    let console = redis.console().await;
    for object in 0..20 {
        console
            .emit_all(&format!("work:{object}"), ["1", "2"])
            .await;
    }
    let sink = sink(url, |options| options.ca_file = Some(ca_file.to_owned()));
    let worker = start(redis, "w", &sink, |config| config.concurrency = 16);
    console.until_at_rest().await;
    worker.finish().await;
    let got = got.lock().expect("no panic");
    assert_eq!(got.len(), 40);
    let connections: HashSet<_> = got.iter().map(|(connection, ..)| connection).collect();
    (connections.len(), got[0].1)
}

/// Tests that HTTP/2 is used if it is offered, over one connection for all slots, and HTTP/1.1 if
/// not.
#[tokio::test]
async fn http_2_is_used_if_it_is_offered() {
    let authority = Authority::new();
    let certificate = authority.certify("localhost");
    for (protocols, version, connections_max) in [
        (&["h2", "http/1.1"][..], Version::HTTP_2, 16),
        (&["http/1.1"], Version::HTTP_11, 16),
        (&[], Version::HTTP_11, 16),
    ] {
        let redis = Redis::start();
        let (port, got) = receiver(&certificate, protocols).await;
        let url = format!("https://localhost:{port}/events");
        let (connections, used) = deliver(&redis, &url, &authority.file(), &got).await;
        assert_eq!(used, version);
        assert!(
            (1..=connections_max).contains(&connections),
            "{connections} connections"
        );
    }
}

/// Tests that a certificate that is not valid stops the worker, and that no event is sent or lost.
#[tokio::test]
async fn a_wrong_certificate_makes_the_sink_unavailable() {
    let authority = Authority::new();
    let other = Authority::new();
    let (port, got) = receiver(&other.certify("localhost"), &["http/1.1"]).await;
    let redis = Redis::start();
    let console = redis.console().await;
    console.emit("work:1", "1").await;
    let sink = sink(&format!("https://localhost:{port}/"), |options| {
        options.ca_file = Some(authority.file())
    });
    let batch = seriatim::sink::Batch::new(
        seriatim::event::ObjectName::new("work:1").expect("a name"),
        1,
        0,
        vec!["1".into()],
    );
    let delivered =
        seriatim::sink::Sink::deliver(&*sink, &batch, &seriatim::sink::Context::detached()).await;
    let stop = delivered.stop().expect("it stops");
    assert!(
        matches!(stop, seriatim::sink::Stop::Unavailable { error } if error.contains("certificate")),
        "{stop:?}"
    );
    assert!(got.lock().expect("no panic").is_empty());
}

mod serve {
    use reqwest::{Certificate as Trusted, Client};
    use rustix::process::Signal;

    use crate::certificates::Authority;
    use crate::serving::Serving;
    use crate::support::Redis;

    /// Returns a client that trusts this authority alone, and keeps no connection.
    fn client(authority: &Authority) -> Client {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let pem = std::fs::read(authority.file()).expect("a file");
        let trusted = Trusted::from_pem(&pem).expect("a certificate");
        Client::builder()
            .tls_certs_only([trusted])
            .pool_max_idle_per_host(0)
            .build()
            .expect("a client")
    }

    /// Story: a certificate was renewed on the disk, and the server presented the old one until it was
    /// no longer valid. Tests that a new pair of files is read without a signal, and that the server
    /// keeps the old pair as long as the new key is absent.
    #[tokio::test]
    async fn the_certificate_is_read_again_when_it_changes() {
        a_new_pair_is_read(|_| {}).await;
    }

    /// Tests that SIGHUP makes the server read a new certificate. If the new certificate is broken,
    /// the server keeps the old one.
    #[tokio::test]
    async fn the_certificate_is_read_again_at_sighup() {
        a_new_pair_is_read(|serving| serving.signal(Signal::HUP)).await;
    }

    /// Replaces the certificate and then the key. After each of them, `tell` may signal the server.
    async fn a_new_pair_is_read(tell: impl Fn(&Serving)) {
        let redis = Redis::start();
        let (first, second) = (Authority::new(), Authority::new());
        let (old, new) = (first.certify("127.0.0.1"), second.certify("127.0.0.1"));
        let options = [
            "--tls-cert",
            old.certificate.to_str().expect("a path"),
            "--tls-key",
            old.key.to_str().expect("a path"),
        ];
        let serving = Serving::start_at(&redis, "127.0.0.1:0", &options, client(&first)).await;
        assert!(serving.url.starts_with("https://"), "{}", serving.url);
        assert_eq!(serving.get("/v1/rules").await.status, 200);
        std::fs::copy(&new.certificate, &old.certificate).expect("copied");
        tell(&serving);
        serving.until_logged("not read again").await;
        assert_eq!(
            serving.get("/v1/rules").await.status,
            200,
            "the key does not fit yet"
        );
        std::fs::copy(&new.key, &old.key).expect("copied");
        tell(&serving);
        serving
            .until_logged(" read again what=\"certificate\"")
            .await;
        let rules = format!("{}/v1/rules", serving.url);
        assert!(client(&first).get(&rules).send().await.is_err());
        let answer = client(&second).get(&rules).send().await;
        assert_eq!(answer.expect("an answer").status(), 200);
    }
}
