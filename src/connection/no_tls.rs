//! In place of TLS, in a build without the feature `tls`.

use std::convert::Infallible;
use std::io;

use tokio::net::TcpStream;

use super::server::Server;

/// TLS does not exist in this build.
pub(super) struct Tls(Infallible);

impl Tls {
    pub(super) fn new(_: &Server) -> Result<Self, String> {
        Err("TLS is not built in; enable the feature `tls` of seriatim".to_owned())
    }

    pub(super) async fn connect(&self, _: &str, _: TcpStream) -> io::Result<TcpStream> {
        match self.0 {}
    }
}
