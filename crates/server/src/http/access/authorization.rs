//! Who sends a request: by a header, a cookie, a ticket or a certificate.
//!
//! `Authorization: Bearer` wins, then the `ticket` of the address, which is for what browsers
//! cannot add a header to, then the certificate of the connection, then the cookie of the page. A
//! request without a credential is anonymous; a bad credential is refused, never ignored.

use std::sync::Arc;

use axum::extract::Request;
use axum::http::{HeaderMap, HeaderValue, Uri, header};
use axum::response::{IntoResponse, Response};
use gapless_auth::{Caller, OverQuota, Places, Proof, Refused};
use gapless_protocol::ErrorCode;

use crate::http::listener::server::{Certificate, Peer, Shared};
use crate::http::values::problem::Problem;

/// The cookie of the page.
pub(crate) const COOKIE: &str = "gapless_login";
/// The parameter that holds a ticket.
const TICKET: &str = "ticket";

/// Authenticates a request, and notes the identity in it. A request without a credential, if one is
/// required, reaches only the paths that need none; one with a bad credential is refused.
pub(crate) fn let_in(shared: &Shared, request: &mut Request) -> Result<(), Kept> {
    let certificate = request.extensions().get::<Arc<Certificate>>();
    let ticket = ticket_of(request.uri());
    let proven = Proven { headers: request.headers(), ticket: ticket.as_deref(), certificate };
    let places = request.extensions().get::<Peer>().map(|peer| &*peer.places);
    let caller = caller_of(shared, &proven, (from(request), places))?;
    let Some(caller) = caller else { return Ok(()) };
    request.extensions_mut().insert(caller);
    if ticket.is_some()
        && let Some(uri) = without_ticket(request.uri())
    {
        *request.uri_mut() = uri;
    }
    Ok(())
}

/// What a request may prove who sends it with.
pub(crate) struct Proven<'a> {
    pub(crate) headers: &'a HeaderMap,
    pub(crate) ticket: Option<&'a str>,
    pub(crate) certificate: Option<&'a Arc<Certificate>>,
}

/// Who sends a request; `None` if it proves nothing and a proof is required. Its connection counts
/// as one of that identity from now on.
pub(crate) fn caller_of(
    shared: &Shared,
    proven: &Proven<'_>,
    (from, places): (Arc<str>, Option<&Places>),
) -> Result<Option<Caller>, Kept> {
    let identified = shared.auth.caller(proven.proof(), Arc::clone(&from)).or_else(|refused| {
        // A browser goes on sending the cookie of a login that is over.
        let stale = proven.is_nothing() && cookie_of(proven.headers).is_some();
        if stale { shared.auth.caller(Proof::Nothing, from) } else { Err(refused) }
    });
    match identified {
        Ok(caller) => {
            if let Some(places) = places {
                caller.connect_by(places)?;
            }
            Ok(Some(caller.keeping()))
        }
        Err(_) if proven.is_nothing() => Ok(None),
        Err(refused) => Err(refused.into()),
    }
}

/// Why a request is not let in.
pub(crate) enum Kept {
    /// Its proof is not good.
    Refused(Refused),
    /// Its identity has as many connections as it may have.
    Over(OverQuota),
}

impl From<Refused> for Kept {
    fn from(refused: Refused) -> Self {
        Self::Refused(refused)
    }
}

impl From<OverQuota> for Kept {
    fn from(over: OverQuota) -> Self {
        Self::Over(over)
    }
}

impl Kept {
    /// The answer; after a delay, if the proof is not good. A connection that is one too many ends with it.
    pub(crate) async fn answer(self) -> Response {
        match self {
            Self::Refused(refused) => refused_later(refused).await.into_response(),
            Self::Over(over) => {
                let mut answer = Problem::from(over).into_response();
                let close = HeaderValue::from_static("close");
                answer.headers_mut().insert(header::CONNECTION, close);
                answer
            }
        }
    }
}

/// The problem of a proof that is not good, after its delay.
pub(crate) async fn refused_later(refused: Refused) -> Problem {
    let delay = refused.delay;
    tokio::time::sleep(delay).await;
    let problem = Problem::new(ErrorCode::NotAuthenticated, refused);
    if delay.is_zero() {
        return problem;
    }
    // The next attempt that fails waits at least as long.
    problem.with("retry_after_ms", u64::try_from(delay.as_millis()).unwrap_or(u64::MAX))
}

impl Proven<'_> {
    /// Whether there is no proof but the cookie, which browsers send with everything.
    fn is_nothing(&self) -> bool {
        let has_token = self.headers.contains_key(header::AUTHORIZATION);
        self.certificate.is_none() && !has_token && self.ticket.is_none()
    }

    fn proof(&self) -> Proof<'_> {
        if self.headers.contains_key(header::AUTHORIZATION) {
            // Anything but a bearer token is ignored.
            Proof::Token(bearer(self.headers).unwrap_or(""))
        } else if let Some(ticket) = self.ticket {
            Proof::Ticket(ticket)
        } else if let Some(certificate) = self.certificate {
            Proof::Certificate(&certificate.0)
        } else if let Some(cookie) = cookie_of(self.headers) {
            Proof::Cookie(cookie)
        } else {
            Proof::Nothing
        }
    }
}

fn from(request: &Request) -> Arc<str> {
    let peer = request.extensions().get::<Peer>();
    peer.map_or_else(|| "http".into(), |peer| peer.address.to_string().into())
}

/// The token in the header. Of two headers a proxy in between may have checked the other.
fn bearer(headers: &HeaderMap) -> Option<&str> {
    let mut all = headers.get_all(header::AUTHORIZATION).iter();
    let text = all.next().filter(|_| all.next().is_none())?.to_str().ok()?;
    let (scheme, token) = text.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then_some(token.trim())
}

fn ticket_of(uri: &Uri) -> Option<String> {
    let query = uri.query()?;
    let mut pairs = form_urlencoded::parse(query.as_bytes());
    pairs.find(|(name, _)| name == TICKET).map(|(_, ticket)| ticket.into_owned())
}

/// Takes the ticket out of the address: handlers know nothing of it.
fn without_ticket(uri: &Uri) -> Option<Uri> {
    let query = uri.query()?;
    let is_other =
        |pair: &&str| form_urlencoded::parse(pair.as_bytes()).all(|(name, _)| name != TICKET);
    let rest = query.split('&').filter(is_other).collect::<Vec<_>>().join("&");
    let question = if rest.is_empty() { "" } else { "?" };
    format!("{}{question}{rest}", uri.path()).parse().ok()
}

pub(crate) fn cookie_of(headers: &HeaderMap) -> Option<&str> {
    let cookies = headers.get_all(header::COOKIE).iter().filter_map(|value| value.to_str().ok());
    let mut pairs = cookies.flat_map(|cookies| cookies.split(';'));
    pairs.find_map(|pair| pair.trim().strip_prefix(COOKIE)?.strip_prefix('='))
}

/// The cookie that stands for a login; `secret` is empty to end one.
pub(crate) fn set_cookie(secret: &str, secure: bool) -> Option<HeaderValue> {
    let secure = if secure { "; Secure" } else { "" };
    let age = if secret.is_empty() { "; Max-Age=0" } else { "" };
    let text = format!("{COOKIE}={secret}; Path=/; HttpOnly; SameSite=Strict{secure}{age}");
    HeaderValue::from_str(&text).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(name: header::HeaderName, value: &str) -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.insert(name, value.parse().expect("a header"));
        headers
    }

    #[test]
    fn a_token_is_behind_the_word_bearer() {
        let token = |text: &str| bearer(&headers(header::AUTHORIZATION, text)).map(str::to_owned);
        assert_eq!(token("Bearer abc").as_deref(), Some("abc"));
        assert_eq!(token("bearer  abc ").as_deref(), Some("abc"));
        assert_eq!(token("Basic abc"), None);
        assert_eq!(token("Bearer"), None);
        let mut two = headers(header::AUTHORIZATION, "Bearer abc");
        two.append(header::AUTHORIZATION, "Bearer def".parse().expect("a header"));
        assert_eq!(bearer(&two), None);
    }

    #[test]
    fn a_ticket_is_found_and_taken_out_however_its_name_is_written() {
        let without = |uri: &str| {
            let mut request = Request::new(axum::body::Body::empty());
            *request.uri_mut() = uri.parse().expect("an address");
            let ticket = ticket_of(request.uri());
            (ticket, without_ticket(request.uri()).map(|uri| uri.to_string()))
        };
        let found = |ticket: &str, rest: &str| (Some(ticket.to_owned()), Some(rest.to_owned()));
        assert_eq!(without("/a?ticket=x"), found("x", "/a"));
        assert_eq!(without("/a?b=c&%74icket=x%20y&d"), found("x y", "/a?b=c&d"));
        assert_eq!(without("/a?tickets=3"), (None, Some("/a?tickets=3".to_owned())));
        assert_eq!(without("/a"), (None, None));
    }

    #[test]
    fn the_cookie_is_found_among_others_and_scripts_cannot_read_it() {
        let found = |text: &str| cookie_of(&headers(header::COOKIE, text)).map(str::to_owned);
        assert_eq!(found("a=b; gapless_login=xyz; c=d").as_deref(), Some("xyz"));
        assert_eq!(found("gapless_login_other=xyz"), None);
        let set = set_cookie("xyz", true).expect("a header");
        let set = set.to_str().expect("text");
        assert_eq!(set, "gapless_login=xyz; Path=/; HttpOnly; SameSite=Strict; Secure");
        assert!(
            set_cookie("", false).expect("a header").to_str().expect("text").contains("Max-Age=0")
        );
    }
}
