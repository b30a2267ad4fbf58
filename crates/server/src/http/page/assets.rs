//! The files of the page, in the binary.
//!
//! They are served below a path that names their content, so that browsers keep them for ever
//! and a page never mixes files of two versions; only the page itself is requested each time, and
//! mostly answered by "not modified".

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::LazyLock;

use axum::extract::Path;
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};

/// What the page may load and call: itself, and nothing else.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; \
    img-src 'self' data:; connect-src 'self'; base-uri 'none'; form-action 'none'; \
    frame-ancestors 'none'";

/// What stands in the page where the path of its files belongs.
const PLACE: &str = "{{files}}";

const FOR_EVER: &str = "public, max-age=31536000, immutable";
const ASK_ANEW: &str = "no-cache";

const HTML: &str = "text/html; charset=utf-8";
const STYLE: &str = "text/css; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";
const PICTURE: &str = "image/svg+xml";

macro_rules! files {
    ($($name:literal $kind:expr,)+) => {
        &[$(File { name: $name, kind: $kind, text: include_str!(concat!("files/", $name)) }),+]
    };
}

struct File {
    name: &'static str,
    kind: &'static str,
    text: &'static str,
}

const PAGE: &str = include_str!("files/index.html");

const FILES: &[File] = files! {
    "style.css" STYLE,
    "icon.svg" PICTURE,
    "app.js" SCRIPT,
    "api.js" SCRIPT,
    "charts.js" SCRIPT,
    "dialog.js" SCRIPT,
    "dom.js" SCRIPT,
    "format.js" SCRIPT,
    "history.js" SCRIPT,
    "live.js" SCRIPT,
    "login.js" SCRIPT,
    "follow.js" SCRIPT,
    "message.js" SCRIPT,
    "theme.js" SCRIPT,
    "views/overview.js" SCRIPT,
    "views/topics.js" SCRIPT,
    "views/topic.js" SCRIPT,
    "views/topic-browse.js" SCRIPT,
    "views/topic-follow.js" SCRIPT,
    "views/topic-publish.js" SCRIPT,
    "views/topic-readers.js" SCRIPT,
    "views/topic-settings.js" SCRIPT,
    "views/subscribers.js" SCRIPT,
    "views/groups.js" SCRIPT,
    "views/group.js" SCRIPT,
    "views/group-letters.js" SCRIPT,
    "views/group-settings.js" SCRIPT,
    "views/missing.js" SCRIPT,
    "views/jobs.js" SCRIPT,
    "views/job.js" SCRIPT,
    "views/outbox.js" SCRIPT,
    "views/cluster.js" SCRIPT,
    "views/events.js" SCRIPT,
    "views/access.js" SCRIPT,
};

/// The name of the files' content, all together.
static VERSION: LazyLock<String> = LazyLock::new(|| {
    let mut hasher = DefaultHasher::new();
    PAGE.hash(&mut hasher);
    FILES.iter().for_each(|file| (file.name, file.text).hash(&mut hasher));
    format!("{:016x}", hasher.finish())
});

static PAGE_HERE: LazyLock<String> =
    LazyLock::new(|| PAGE.replace(PLACE, &format!("/page/{}", *VERSION)));

/// The page itself.
pub(crate) fn page(headers: &HeaderMap) -> Response {
    let mut answer = content(headers, HTML, &PAGE_HERE, ASK_ANEW);
    let policy = HeaderValue::from_static(POLICY);
    answer.headers_mut().insert(header::CONTENT_SECURITY_POLICY, policy);
    answer.headers_mut().insert(header::VARY, HeaderValue::from_static("accept"));
    answer
}

/// A file of the page.
pub(crate) async fn file(
    Path((version, name)): Path<(String, String)>,
    headers: HeaderMap,
) -> Response {
    let found = FILES.iter().find(|file| file.name == name);
    match found.filter(|_| version == *VERSION) {
        Some(file) => content(&headers, file.kind, file.text, FOR_EVER),
        None => StatusCode::NOT_FOUND.into_response(),
    }
}

/// Browsers ask for it in any case.
pub(crate) async fn icon(headers: HeaderMap) -> Response {
    let icon = FILES.iter().find(|file| file.name == "icon.svg");
    icon.map_or_else(
        || StatusCode::NOT_FOUND.into_response(),
        |file| content(&headers, file.kind, file.text, ASK_ANEW),
    )
}

fn content(
    headers: &HeaderMap,
    kind: &'static str,
    text: &'static str,
    cache: &'static str,
) -> Response {
    let tag = format!("\"{}\"", *VERSION);
    let known = headers.get_all(header::IF_NONE_MATCH).iter();
    let is_known = known.filter_map(|value| value.to_str().ok()).any(|value| {
        value.split(',').map(str::trim).any(|each| {
            // Compression makes a tag weak; the content is the same.
            each == "*" || each.strip_prefix("W/").unwrap_or(each) == tag
        })
    });
    let common: [(HeaderName, String); 3] = [
        (header::ETAG, tag),
        (header::CACHE_CONTROL, cache.to_owned()),
        (header::REFERRER_POLICY, "no-referrer".to_owned()),
    ];
    if is_known {
        return (StatusCode::NOT_MODIFIED, common).into_response();
    }
    (common, [(header::CONTENT_TYPE, kind)], text).into_response()
}
