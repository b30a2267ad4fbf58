//! Where a server is: a TCP address or the path of a Unix socket.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

/// The port of a server's native API unless it says otherwise.
pub const DEFAULT_PORT: u16 = 4281;
/// Where a server is by default.
pub const DEFAULT_ADDRESS: &str = "127.0.0.1:4281";

/// Where a server is.
///
/// ```
/// use gapless_client::Address;
///
/// assert_eq!("localhost".parse(), Ok(Address::Tcp("localhost:4281".into())));
/// assert_eq!("[::1]:99".parse(), Ok(Address::Tcp("[::1]:99".into())));
/// assert_eq!("unix:/run/gapless.sock".parse(), Ok(Address::Unix("/run/gapless.sock".into())));
/// assert!("".parse::<Address>().is_err());
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Address {
    /// A host and a port, as `name:port`, `1.2.3.4:port` or `[::1]:port`.
    Tcp(String),
    /// The path of a Unix socket.
    Unix(PathBuf),
}

/// Why a text is not a valid address.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not a valid address: write host:port or unix:/path")]
pub struct AddressError {
    /// What was written.
    pub text: String,
}

impl FromStr for Address {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        let wrong = || AddressError { text: text.to_owned() };
        if let Some(path) = text.strip_prefix("unix:") {
            return if path.is_empty() { Err(wrong()) } else { Ok(Self::Unix(path.into())) };
        }
        let text = text.strip_prefix("tcp:").unwrap_or(text);
        let host_end = text.rfind(']').map_or(0, |at| at + 1);
        let (host, port) = match text[host_end..].rsplit_once(':') {
            Some((rest, port)) => (&text[..host_end + rest.len()], Some(port)),
            None => (text, None),
        };
        let bare_colons = !host.starts_with('[') && host.contains(':');
        if host.is_empty() || bare_colons || host.contains(char::is_whitespace) {
            return Err(wrong());
        }
        match port {
            None => Ok(Self::Tcp(format!("{host}:{DEFAULT_PORT}"))),
            Some(port) if port.parse::<u16>().is_ok() => Ok(Self::Tcp(format!("{host}:{port}"))),
            Some(_) => Err(wrong()),
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
    fn rubbish_is_no_address() {
        for text in ["", ":1", "unix:", "host:", "host:x", "host:99999", "::1", "a b:1", "tcp:"] {
            assert!(text.parse::<Address>().is_err(), "{text}");
        }
    }

    #[test]
    fn what_is_shown_reads_back() {
        for text in ["127.0.0.1:4281", "[::1]:1", "unix:/a b/c.sock", "tcp:host:7", "[::1]"] {
            let address: Address = text.parse().unwrap();
            assert_eq!(address.to_string().parse(), Ok(address));
        }
    }
}
