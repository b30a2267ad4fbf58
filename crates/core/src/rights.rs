//! Who may do what: roles are lists of rules, and each decision names the rule behind it.
//!
//! A rule allows or denies rights on the names that a pattern matches. A deny that matches always
//! wins, whatever the order and whichever role it comes from; without a matching allow the answer
//! is no. So adding a deny can only take away, and adding an allow can only give.
//!
//! A right on a whole pattern (a subscription) needs one allow that covers the pattern, and no
//! deny that overlaps it: what is denied can then never be among what is delivered. The system's
//! names are matched only by rules that name them, as with every pattern.
//!
//! Who a client is, and where roles are kept, is not decided here.

use alloc::string::{String, ToString};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;
use core::str::FromStr;

use crate::{Pattern, PatternError, TopicName};

/// Most rules of one role: each decision that is not cached looks at all of them.
pub const RULES_MAX: usize = 1_000;
/// Longest name of a role or an identity, in bytes.
pub const NAME_BYTES_MAX: usize = 128;

macro_rules! rights {
    ($($name:ident $text:literal $doc:literal,)+) => {
        /// Something that one may be allowed to do.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Right {
            $(#[doc = $doc] $name,)+
        }

        impl Right {
            /// All of them.
            pub const ALL: &'static [Self] = &[$(Self::$name),+];

            /// The word in rules.
            pub fn name(self) -> &'static str {
                match self { $(Self::$name => $text),+ }
            }

            /// What it allows.
            pub fn meaning(self) -> &'static str {
                match self { $(Self::$name => $doc),+ }
            }
        }
    };
}

rights! {
    Publish "publish" "Publish to a topic or subject, and write a cell.",
    Subscribe "subscribe" "Follow a topic or pattern, also as a member of a group.",
    Read "read" "Describe a topic, read single messages, ranges and cells.",
    Create "create" "Create a topic.",
    Configure "configure" "Change the settings of a topic.",
    Delete "delete" "Delete or purge a topic.",
    Group "group" "Use and change the groups whose names match.",
    Dlq "dlq" "Read, redrive and remove dead letters of the groups whose names match.",
    JobSubmit "job.submit" "Submit, watch, cancel and retry jobs of the executables that match.",
    JobWork "job.work" "Run jobs of the executables that match.",
    Outbox "outbox" "Write and read the offsets of the outbox relays that match.",
    Admin "admin" "See and change the server; the pattern names an area: server, clients, auth.",
}

impl FromStr for Right {
    type Err = RuleError;

    fn from_str(text: &str) -> Result<Self, RuleError> {
        let found = Self::ALL.iter().find(|right| right.name() == text);
        found.copied().ok_or_else(|| RuleError::Right(text.to_string()))
    }
}

impl fmt::Display for Right {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A set of rights.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rights(u16);

impl Rights {
    /// Every right.
    pub const ALL: Self = Self((1 << Right::ALL.len()) - 1);

    /// With one more.
    #[must_use]
    pub fn with(self, right: Right) -> Self {
        Self(self.0 | 1 << right as u16)
    }

    /// Whether it is in the set.
    pub fn has(self, right: Right) -> bool {
        self.0 & 1 << right as u16 != 0
    }

    fn parse(text: &str) -> Result<Self, RuleError> {
        if text == "*" {
            return Ok(Self::ALL);
        }
        text.split(',').try_fold(Self::default(), |all, right| Ok(all.with(right.trim().parse()?)))
    }
}

impl fmt::Display for Rights {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if *self == Self::ALL {
            return f.write_str("*");
        }
        let held = Right::ALL.iter().filter(|right| self.has(**right));
        for (at, right) in held.enumerate() {
            let comma = if at == 0 { "" } else { "," };
            write!(f, "{comma}{right}")?;
        }
        Ok(())
    }
}

/// Whether a rule gives or takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// It gives.
    Allow,
    /// It takes, and wins over every allow.
    Deny,
}

/// One rule, as in `allow publish,read on orders.>`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// Whether it gives or takes.
    pub effect: Effect,
    /// Which rights.
    pub rights: Rights,
    /// On which names.
    pub pattern: Pattern,
}

/// Why a text is not a valid rule. Nothing was changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RuleError {
    /// It has not the form of a rule.
    #[error("write a rule as `allow publish,read on orders.>`, with allow or deny")]
    Form,
    /// There is no such right.
    #[error(
        "there is no right {0:?}; there are publish, subscribe, read, create, configure, delete, \
             group, dlq, job.submit, job.work, outbox, admin, and * for all"
    )]
    Right(String),
    /// What follows `on` is not a valid pattern.
    #[error(transparent)]
    Pattern(#[from] PatternError),
    /// A role has more rules than it may have.
    #[error("a role has at most {RULES_MAX} rules")]
    TooMany,
    /// A name of a role or an identity cannot be used.
    #[error(
        "{0:?} is not a valid name of a role or an identity: use 1 to {NAME_BYTES_MAX} letters, digits, \
             and . _ - : @"
    )]
    Name(String),
}

impl FromStr for Rule {
    type Err = RuleError;

    fn from_str(text: &str) -> Result<Self, RuleError> {
        let mut words = text.split_whitespace();
        let effect = match words.next() {
            Some("allow") => Effect::Allow,
            Some("deny") => Effect::Deny,
            _ => return Err(RuleError::Form),
        };
        let rights = Rights::parse(words.next().ok_or(RuleError::Form)?)?;
        match (words.next(), words.next(), words.next()) {
            (Some("on"), Some(pattern), None) => {
                Ok(Self { effect, rights, pattern: Pattern::parse(pattern)? })
            }
            _ => Err(RuleError::Form),
        }
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let effect = if self.effect == Effect::Allow { "allow" } else { "deny" };
        write!(f, "{effect} {} on {}", self.rights, self.pattern)
    }
}

/// A role: a name for some rules.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Role {
    name: String,
    rules: Vec<Rule>,
}

impl Role {
    /// A role with these rules.
    ///
    /// # Errors
    /// When the name cannot be used or there are too many rules.
    pub fn new(name: &str, rules: Vec<Rule>) -> Result<Self, RuleError> {
        check_name(name)?;
        if rules.len() > RULES_MAX {
            return Err(RuleError::TooMany);
        }
        Ok(Self { name: name.to_string(), rules })
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its rules.
    pub fn rules(&self) -> &[Rule] {
        &self.rules
    }
}

/// Whether a text can be the name of a role or an identity: what is safe in logs, in paths and
/// between commas.
///
/// # Errors
/// When it cannot.
pub fn check_name(name: &str) -> Result<(), RuleError> {
    let fine = |byte: u8| byte.is_ascii_alphanumeric() || b"._-:@".contains(&byte);
    if (1..=NAME_BYTES_MAX).contains(&name.len()) && name.bytes().all(fine) {
        Ok(())
    } else {
        Err(RuleError::Name(name.to_string()))
    }
}

/// What one may do: the rules of all its roles.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Grants {
    roles: Vec<Arc<Role>>,
}

/// What a right is asked for.
#[derive(Clone, Copy, Debug)]
pub enum On<'a> {
    /// One name.
    Name(&'a TopicName),
    /// Every name that the pattern matches, those of the future too.
    All(&'a Pattern),
}

/// The answer, and the rule behind it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decision<'a> {
    /// Whether it is allowed.
    pub allowed: bool,
    /// The role and the rule that decided; none when no rule matched, which means no.
    pub by: Option<(&'a str, &'a Rule)>,
}

impl Grants {
    /// The rules of these roles.
    pub fn new(roles: Vec<Arc<Role>>) -> Self {
        Self { roles }
    }

    /// The roles.
    pub fn roles(&self) -> &[Arc<Role>] {
        &self.roles
    }

    /// Whether there is anything on which a rule allows the right; a denial may take it back.
    pub fn allows_somewhere(&self, right: Right) -> bool {
        let mut rules = self.roles.iter().flat_map(|role| &role.rules);
        rules.any(|rule| rule.effect == Effect::Allow && rule.rights.has(right))
    }

    /// Decides, and says by which rule.
    pub fn decide(&self, right: Right, on: On<'_>) -> Decision<'_> {
        let mut allow = None;
        for role in &self.roles {
            for rule in role.rules.iter().filter(|rule| rule.rights.has(right)) {
                match rule.effect {
                    Effect::Deny if rule.touches(on) => {
                        return Decision { allowed: false, by: Some((&role.name, rule)) };
                    }
                    Effect::Allow if allow.is_none() && rule.covers(on) => {
                        allow = Some((role.name.as_str(), rule));
                    }
                    _ => {}
                }
            }
        }
        Decision { allowed: allow.is_some(), by: allow }
    }
}

impl Rule {
    /// Whether all that is asked for is within the pattern.
    fn covers(&self, on: On<'_>) -> bool {
        match on {
            On::Name(name) => self.pattern.matches(name),
            On::All(pattern) => self.pattern.covers(pattern),
        }
    }

    /// Whether any of what is asked for is within the pattern.
    fn touches(&self, on: On<'_>) -> bool {
        match on {
            On::Name(name) => self.pattern.matches(name),
            On::All(pattern) => self.pattern.overlaps(pattern),
        }
    }
}

#[cfg(test)]
mod tests;
