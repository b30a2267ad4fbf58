//! The subscriptions that match a name, found without looking at the others.
//!
//! Patterns are laid out as a tree of tokens. Matching walks down with the name's tokens
//! and at each level follows at most two branches, the token's own and `*`, so the work
//! depends on the name and on what matches, not on how many patterns there are. A branch
//! that holds nothing any more is removed, so that memory comes back.
//!
//! An id that sits under several patterns is reported once for each of them: the caller decides
//! whether that means one delivery or several.

use alloc::boxed::Box;
use alloc::collections::{BTreeMap, BTreeSet};
use core::ops::ControlFlow;

use crate::name::TopicName;
use crate::pattern::{ONE, Pattern, REST};

/// Why a subscription was refused. Nothing is changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SubscribeError {
    /// The same subscriber has the same pattern already.
    #[error("already subscribed to this pattern: unsubscribe first, or use the subscription")]
    AlreadySubscribed,
}

/// Why a subscription could not be removed. Nothing is changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum UnsubscribeError {
    /// The subscriber does not have this pattern.
    #[error("not subscribed to this pattern: check the pattern and the subscriber")]
    NotSubscribed,
}

/// Who subscribes to what.
#[derive(Debug)]
pub struct SubscriptionIndex<T> {
    root: Node<T>,
    len: usize,
    /// How many nodes the last match looked at; tests prove by it that matching does not
    /// scan.
    #[cfg(test)]
    visited: core::cell::Cell<usize>,
}

#[derive(Debug)]
struct Node<T> {
    children: BTreeMap<Box<str>, Node<T>>,
    /// The branch of `*`.
    one: Option<Box<Node<T>>>,
    /// Ids of patterns that end here.
    here: BTreeSet<T>,
    /// Ids of patterns that end with a `>` in this place.
    rest: BTreeSet<T>,
}

impl<T> Default for Node<T> {
    fn default() -> Self {
        Self { children: BTreeMap::new(), one: None, here: BTreeSet::new(), rest: BTreeSet::new() }
    }
}

impl<T> Default for SubscriptionIndex<T> {
    fn default() -> Self {
        Self {
            root: Node::default(),
            len: 0,
            #[cfg(test)]
            visited: core::cell::Cell::new(0),
        }
    }
}

impl<T: Ord + Clone> SubscriptionIndex<T> {
    /// An index without subscriptions.
    pub fn new() -> Self {
        Self::default()
    }

    /// How many subscriptions there are.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Adds a subscription; having it already is an error (A2).
    pub fn insert(&mut self, pattern: &Pattern, id: T) -> Result<(), SubscribeError> {
        let mut node = &mut self.root;
        let mut rest = false;
        for token in pattern.tokens() {
            match token {
                REST => rest = true,
                ONE => node = node.one.get_or_insert_default(),
                token => {
                    // Looked up first: most tokens are there, and the key costs memory.
                    if !node.children.contains_key(token) {
                        node.children.insert(Box::from(token), Node::default());
                    }
                    node = node.children.get_mut(token).expect("the branch was just made");
                }
            }
        }
        let ids = if rest { &mut node.rest } else { &mut node.here };
        if !ids.insert(id) {
            return Err(SubscribeError::AlreadySubscribed);
        }
        self.len += 1;
        Ok(())
    }

    /// Removes a subscription; not having it is an error (A2).
    pub fn remove(&mut self, pattern: &Pattern, id: &T) -> Result<(), UnsubscribeError> {
        if !self.root.remove(pattern.as_str(), id) {
            return Err(UnsubscribeError::NotSubscribed);
        }
        self.len -= 1;
        Ok(())
    }

    /// Reports every subscription that matches the name, in no particular but always the same
    /// order; an id once per matching pattern.
    pub fn for_each_match(&self, name: &TopicName, mut tell: impl FnMut(&T)) {
        let _ = self.search(name, &mut |id| {
            tell(id);
            ControlFlow::Continue(())
        });
    }

    /// Whether any subscription matches the name.
    pub fn matches_any(&self, name: &TopicName) -> bool {
        self.search(name, &mut |_| ControlFlow::Break(())).is_break()
    }

    /// Asserts what must always be true; walks everything.
    pub fn check(&self) {
        assert_eq!(self.root.count(true), self.len, "the length counts what is there");
    }

    fn search(
        &self,
        name: &TopicName,
        tell: &mut impl FnMut(&T) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        #[cfg(test)]
        self.visited.set(0);
        // A wildcard in first place passes the system's names by.
        self.walk(&self.root, Some(name.as_str()), !name.is_system(), tell)
    }

    fn walk(
        &self,
        node: &Node<T>,
        left: Option<&str>,
        wild: bool,
        tell: &mut impl FnMut(&T) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        #[cfg(test)]
        self.visited.update(|visited| visited + 1);
        let Some(left) = left else {
            return node.here.iter().try_for_each(tell);
        };
        let (token, left) = split_first(left);
        if wild {
            node.rest.iter().try_for_each(&mut *tell)?;
            if let Some(one) = &node.one {
                self.walk(one, left, true, tell)?;
            }
        }
        match node.children.get(token) {
            Some(child) => self.walk(child, left, true, tell),
            None => ControlFlow::Continue(()),
        }
    }
}

impl<T: Ord> Node<T> {
    fn is_empty(&self) -> bool {
        self.children.is_empty()
            && self.one.is_none()
            && self.here.is_empty()
            && self.rest.is_empty()
    }

    /// Removes the id below here, and every branch that becomes empty by it. A pattern has
    /// at most 128 tokens, so the stack suffices.
    fn remove(&mut self, pattern: &str, id: &T) -> bool {
        let (token, left) = split_first(pattern);
        if token == REST {
            return self.rest.remove(id);
        }
        let child =
            if token == ONE { self.one.as_deref_mut() } else { self.children.get_mut(token) };
        let Some(child) = child else { return false };
        let removed = match left {
            Some(left) => child.remove(left, id),
            None => child.here.remove(id),
        };
        if removed && child.is_empty() {
            if token == ONE {
                self.one = None;
            } else {
                self.children.remove(token);
            }
        }
        removed
    }

    fn count(&self, root: bool) -> usize {
        assert!(root || !self.is_empty(), "an empty branch is removed");
        let below: usize = self.children.values().map(|child| child.count(false)).sum();
        let one = self.one.as_ref().map_or(0, |one| one.count(false));
        self.here.len() + self.rest.len() + below + one
    }
}

fn split_first(text: &str) -> (&str, Option<&str>) {
    match text.split_once('.') {
        Some((token, left)) => (token, Some(left)),
        None => (text, None),
    }
}

#[cfg(test)]
#[path = "trie_tests.rs"]
mod tests;
