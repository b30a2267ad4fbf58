//! Names in a cluster: nodes and their incarnations, identities, named subscriptions, claims.
//!
//! They are parsed once at the edge; what has these types is well formed.

use alloc::sync::Arc;
use core::fmt;
use core::str::FromStr;

use crate::name::{NameError, check_token, tokens_at};
use crate::pattern::Pattern;
use crate::time::Timestamp;

/// The longest name of a node, in bytes.
pub const NODE_NAME_BYTES_MAX: usize = 64;

/// The longest identity of a subscriber, in bytes.
pub const IDENTITY_BYTES_MAX: usize = 128;

/// Why a text is not the name of a node, or not an identity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ClusterNameError {
    /// It is empty, or has a character that names cannot have.
    #[error(transparent)]
    Name(#[from] NameError),
    /// It is too long.
    #[error("the name has {bytes} bytes: shorten it to {max}")]
    TooLong {
        /// How many bytes it has.
        bytes: usize,
        /// How many it may have.
        max: usize,
    },
    /// The name of a node is a single token.
    #[error("the dot at byte {at} cannot be in the name of a node: remove it")]
    Dot {
        /// Where it is.
        at: usize,
    },
    /// A leading `$` is for the system's own names.
    #[error("the name begins with '$', which is for the system's own names: remove it")]
    System,
}

/// The name of a node: one token, unique in its cluster, the same after a restart.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeName(Arc<str>);

/// Who a subscriber is, wherever it is connected: tokens and dots, as in a topic name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Identity(Arc<str>);

/// A life of a node: greater after each start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Incarnation(pub u64);

/// A subscription that outlives its connection: the identity and the pattern together.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Named {
    /// Who subscribes.
    pub identity: Identity,
    /// To what.
    pub pattern: Pattern,
}

/// A node in one of its lives. What it numbers is numbered per life.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Sender {
    /// Which node.
    pub node: NodeName,
    /// Which life.
    pub incarnation: Incarnation,
}

/// Where a named subscription says it is. Of several claims the greatest wins: the latest, by the
/// clocks of the nodes, with a rule for equal times.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Claim {
    /// When it subscribed; always later than every claim its node had heard of.
    pub time: Timestamp,
    /// At which node.
    pub node: NodeName,
    /// The number of its stay there: never used twice in one life of the node.
    pub session: u64,
}

impl NodeName {
    /// Checks a name.
    ///
    /// # Errors
    /// Says what is wrong with it, and where.
    pub fn parse(text: &str) -> Result<Self, ClusterNameError> {
        check_text(text, NODE_NAME_BYTES_MAX)?;
        if let Some(at) = text.find('.') {
            return Err(ClusterNameError::Dot { at });
        }
        check_token(0, text)?;
        Ok(Self(Arc::from(text)))
    }

    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Identity {
    /// Checks an identity.
    ///
    /// # Errors
    /// Says what is wrong with it, and where.
    pub fn parse(text: &str) -> Result<Self, ClusterNameError> {
        check_text(text, IDENTITY_BYTES_MAX)?;
        for (at, token) in tokens_at(text) {
            check_token(at, token)?;
        }
        Ok(Self(Arc::from(text)))
    }

    /// The identity as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

fn check_text(text: &str, max: usize) -> Result<(), ClusterNameError> {
    if text.is_empty() {
        return Err(NameError::Empty.into());
    }
    if text.len() > max {
        return Err(ClusterNameError::TooLong { bytes: text.len(), max });
    }
    if text.starts_with('$') {
        return Err(ClusterNameError::System);
    }
    Ok(())
}

macro_rules! text {
    ($type:ident) => {
        impl AsRef<str> for $type {
            fn as_ref(&self) -> &str {
                &self.0
            }
        }

        impl FromStr for $type {
            type Err = ClusterNameError;

            fn from_str(text: &str) -> Result<Self, ClusterNameError> {
                Self::parse(text)
            }
        }

        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
    };
}

text!(NodeName);
text!(Identity);

impl fmt::Display for Incarnation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Display for Named {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at {}", self.identity, self.pattern)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_is_one_token_and_an_identity_may_have_several() {
        assert_eq!(NodeName::parse("node-1").unwrap().as_str(), "node-1");
        assert_eq!(NodeName::parse("a.b"), Err(ClusterNameError::Dot { at: 1 }));
        assert_eq!(Identity::parse("billing.eu").unwrap().as_str(), "billing.eu");
        let empty_token = NameError::EmptyToken { at: 2 };
        assert_eq!(Identity::parse("a..b"), Err(ClusterNameError::Name(empty_token)));
        assert_eq!(NodeName::parse("$a"), Err(ClusterNameError::System));
        assert_eq!(NodeName::parse(""), Err(ClusterNameError::Name(NameError::Empty)));
    }

    #[test]
    fn names_are_bounded() {
        assert!(NodeName::parse(&"n".repeat(NODE_NAME_BYTES_MAX)).is_ok());
        let too_long = ClusterNameError::TooLong { bytes: 65, max: NODE_NAME_BYTES_MAX };
        assert_eq!(NodeName::parse(&"n".repeat(65)), Err(too_long));
        assert!(Identity::parse(&"i".repeat(IDENTITY_BYTES_MAX + 1)).is_err());
    }

    #[test]
    fn the_later_claim_is_greater_and_equal_times_are_decided_by_the_node() {
        let claim = |time, node, session| {
            let node = NodeName::parse(node).unwrap();
            Claim { time: Timestamp(time), node, session }
        };
        assert!(claim(2, "a", 1) > claim(1, "b", 9));
        assert!(claim(2, "b", 1) > claim(2, "a", 9));
        assert!(claim(2, "b", 2) > claim(2, "b", 1));
    }
}
