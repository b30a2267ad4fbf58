//! The parameters of an address: decoded once, taken by name, and none left over.
//!
//! Values are bytes, since a key may be any bytes; handlers convert them to text or numbers, and a
//! value that cannot be converted is a problem that names the parameter. A parameter that no
//! handler took is a problem too: a misspelt `expect_seq` must not publish without its condition.

use std::convert::Infallible;
use std::str::FromStr;

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use bytes::Bytes;

use crate::http::values::problem::Problem;

/// Most parameters of one request.
const PARAMS_MAX: usize = 256;

/// What stands behind the question mark of an address.
#[derive(Clone, Debug, Default)]
pub(crate) struct Params {
    given: Vec<(String, Bytes)>,
    /// What was asked for, taken or not, for the message about what is left over.
    known: Vec<&'static str>,
}

impl<S: Sync> FromRequestParts<S> for Params {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Infallible> {
        Ok(Self::parse(parts.uri.query().unwrap_or("")))
    }
}

impl Params {
    pub(crate) fn parse(query: &str) -> Self {
        let pairs = query.split('&').filter(|pair| !pair.is_empty()).take(PARAMS_MAX);
        let given = pairs.map(|pair| {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let name = String::from_utf8_lossy(&decode(name)).into_owned();
            (name, Bytes::from(decode(value)))
        });
        Self { given: given.collect(), known: Vec::new() }
    }

    /// Whether none is left.
    pub(crate) fn is_empty(&self) -> bool {
        self.given.is_empty()
    }

    /// The bytes of a parameter.
    pub(crate) fn bytes(&mut self, name: &'static str) -> Result<Option<Bytes>, Problem> {
        self.known.push(name);
        let mut all = self.take_all(name);
        if all.len() > 1 {
            return Err(Problem::bad_request(format_args!("`{name}` is given more than once")));
        }
        Ok(all.pop())
    }

    /// All values of a parameter that may be given several times.
    pub(crate) fn every(&mut self, name: &'static str) -> Vec<Bytes> {
        self.known.push(name);
        self.take_all(name)
    }

    fn take_all(&mut self, name: &str) -> Vec<Bytes> {
        let taken = self.given.extract_if(.., |(each, _)| each == name);
        taken.map(|(_, value)| value).collect()
    }

    /// The text of a parameter.
    pub(crate) fn text(&mut self, name: &'static str) -> Result<Option<String>, Problem> {
        self.bytes(name)?.map(|value| text_of(name, &value)).transpose()
    }

    /// A parameter that is read by its type.
    pub(crate) fn parsed<T: FromStr>(&mut self, name: &'static str) -> Result<Option<T>, Problem>
    where
        T::Err: std::fmt::Display,
    {
        let Some(text) = self.text(name)? else { return Ok(None) };
        let parsed = text.parse().map_err(|why| {
            Problem::bad_request(format_args!("`{name}={text}` cannot be used: {why}"))
        });
        parsed.map(Some)
    }

    /// A whole number.
    pub(crate) fn number<T: TryFrom<u64>>(
        &mut self,
        name: &'static str,
    ) -> Result<Option<T>, Problem> {
        self.text(name)?.map(|text| number_of(name, &text)).transpose()
    }

    /// How many of something: from 1 to `max`.
    pub(crate) fn count(
        &mut self,
        name: &'static str,
        default: usize,
        max: usize,
    ) -> Result<usize, Problem> {
        match self.number(name)?.unwrap_or(default) {
            count if (1..=max).contains(&count) => Ok(count),
            count => Err(Problem::bad_request(format_args!(
                "`{name}={count}` cannot be used: it goes from 1 to {max}"
            ))),
        }
    }

    /// Whether a switch is on: `true`, `1`, `yes`, or the name alone.
    pub(crate) fn switch(&mut self, name: &'static str) -> Result<Option<bool>, Problem> {
        let Some(text) = self.text(name)? else { return Ok(None) };
        switch_of(name, &text).map(Some)
    }

    /// That nothing is left over.
    pub(crate) fn finish(self) -> Result<(), Problem> {
        let Some((name, _)) = self.given.first() else { return Ok(()) };
        let known = if self.known.is_empty() { "none".into() } else { self.known.join(", ") };
        Err(Problem::bad_request(format_args!(
            "there is no parameter `{name}` here; these are: {known}"
        )))
    }
}

pub(crate) fn text_of(name: &str, value: &[u8]) -> Result<String, Problem> {
    match std::str::from_utf8(value) {
        Ok(text) => Ok(text.to_owned()),
        Err(_) => Err(Problem::bad_request(format_args!("`{name}` is not UTF-8"))),
    }
}

pub(crate) fn number_of<T: TryFrom<u64>>(name: &str, text: &str) -> Result<T, Problem> {
    let number = text.parse::<u64>().ok().and_then(|number| T::try_from(number).ok());
    number.ok_or_else(|| {
        let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        let why = if digits { "it is too large" } else { "it is a whole number from 0" };
        Problem::bad_request(format_args!("`{name}={text}` cannot be used: {why}"))
    })
}

pub(crate) fn switch_of(name: &str, text: &str) -> Result<bool, Problem> {
    match text {
        "" | "true" | "1" | "yes" | "on" => Ok(true),
        "false" | "0" | "no" | "off" => Ok(false),
        _ => Err(Problem::bad_request(format_args!(
            "`{name}={text}` cannot be used: write true or false"
        ))),
    }
}

/// Decodes what a form encodes. Escapes that are none were refused before, for all requests.
fn decode(text: &str) -> Vec<u8> {
    let mut decoded = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&byte, after)) = rest.split_first() {
        let digit = |at: usize| after.get(at).and_then(|byte| char::from(*byte).to_digit(16));
        match (byte, digit(0), digit(1)) {
            (b'%', Some(high), Some(low)) => {
                decoded.push((high * 16 + low) as u8);
                rest = &after[2..];
            }
            (b'+', ..) => {
                decoded.push(b' ');
                rest = after;
            }
            _ => {
                decoded.push(byte);
                rest = after;
            }
        }
    }
    decoded
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_decoded_as_forms_are() {
        let mut params = Params::parse("key=a%20b+c%2B&raw=%ff&n=7&on&x=1&x=2");
        assert_eq!(params.text("key").unwrap().unwrap(), "a b c+");
        assert_eq!(params.bytes("raw").unwrap().unwrap(), &b"\xff"[..]);
        assert_eq!(params.number::<u64>("n").unwrap(), Some(7));
        assert_eq!(params.switch("on").unwrap(), Some(true));
        assert_eq!(params.every("x").len(), 2);
        params.finish().unwrap();
    }

    #[test]
    fn a_number_that_is_none_is_told_in_plain_words() {
        let detail = |text| number_of::<u32>("n", text).unwrap_err().detail;
        assert_eq!(detail("-1"), "`n=-1` cannot be used: it is a whole number from 0");
        assert_eq!(detail("5000000000"), "`n=5000000000` cannot be used: it is too large");
    }

    #[test]
    fn what_is_wrong_or_left_over_is_named() {
        let detail = |problem: Problem| problem.detail;
        let mut params = Params::parse("n=x&raw=%ff&twice=1&twice=2&expct_seq=3");
        assert!(detail(params.number::<u64>("n").unwrap_err()).contains("n=x"));
        assert!(detail(params.text("raw").unwrap_err()).contains("UTF-8"));
        assert!(detail(params.bytes("twice").unwrap_err()).contains("more than once"));
        let left = detail(params.finish().unwrap_err());
        assert!(left.contains("expct_seq") && left.contains("twice"), "{left}");
    }
}
