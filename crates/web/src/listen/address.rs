//! The addresses on which a command listens.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

/// An address on which a command listens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Address {
    /// `HOST:PORT`; the host is a name or an IP address.
    Tcp(String),
    /// `unix:PATH`: the path of a Unix socket.
    Unix(PathBuf),
}

impl FromStr for Address {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Some(path) = text.strip_prefix("unix:") {
            return if path.is_empty() {
                Err("unix: needs a path".to_owned())
            } else {
                Ok(Self::Unix(path.into()))
            };
        }
        match text.rsplit_once(':') {
            Some((host, port)) if !host.is_empty() && port.parse::<u16>().is_ok() => {
                Ok(Self::Tcp(text.to_owned()))
            }
            _ => Err("write HOST:PORT, e.g. 127.0.0.1:8080 or [::1]:8080, or unix:PATH".to_owned()),
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => f.write_str(address),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_a_host_with_a_port_or_a_socket() {
        for text in [
            "127.0.0.1:8080",
            "[::1]:80",
            "localhost:0",
            "unix:/run/seriatim.sock",
        ] {
            assert_eq!(text.parse::<Address>().expect(text).to_string(), text);
        }
        for text in ["", "8080", ":8080", "host", "host:", "host:99999", "unix:"] {
            assert!(text.parse::<Address>().is_err(), "{text}");
        }
    }
}
