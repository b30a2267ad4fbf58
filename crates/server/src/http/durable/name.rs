//! From the path of a stream to the name of its topic.
//!
//! Each segment of the path is a token of the name, so `/v1/stream/orders/eu` is the topic
//! `orders.eu` that other listeners see, and the other way round. What a token cannot hold (dots,
//! blanks, wildcards and the like) is written as `%` and two hexadecimal digits for each
//! byte, and so is `%` itself: two paths never share a topic.

use axum::http::StatusCode;
use gapless_core::TopicName;
use gapless_protocol::ErrorCode;
use percent_encoding::percent_decode_str;

use crate::http::values::problem::Problem;

/// Where all streams are.
pub(super) const ROOT: &str = "/v1/stream/";

/// What the protocol keeps for itself: subscriptions live below it.
const RESERVED: &str = "__ds";

/// The topic behind a path as it stands in the request.
pub(super) fn topic_of(path: &str) -> Result<TopicName, Problem> {
    let refused = |why: &dyn std::fmt::Display| Problem::new(ErrorCode::InvalidTopic, why);
    let path = path.strip_prefix(ROOT).unwrap_or(path);
    let mut name = String::with_capacity(path.len());
    for (index, segment) in path.split('/').enumerate() {
        let segment = percent_decode_str(segment).decode_utf8();
        let segment = segment.map_err(|_| refused(&"the path is not valid UTF-8"))?;
        if segment.is_empty() {
            return Err(refused(&"the path has an empty segment: put one slash between two"));
        }
        if index == 0 && segment == RESERVED {
            let why = "subscriptions are not offered; paths below __ds are kept for them";
            return Err(
                Problem::new(ErrorCode::NotOffered, why).with_status(StatusCode::NOT_IMPLEMENTED)
            );
        }
        if index > 0 {
            name.push('.');
        }
        segment.chars().for_each(|each| push(&mut name, each));
    }
    let name = TopicName::parse(&name).map_err(|error| refused(&error))?;
    if name.is_system() {
        let why = "paths that begin with `$` are the broker's own; choose another";
        return Err(Problem::new(ErrorCode::ReservedName, why));
    }
    Ok(name)
}

fn push(name: &mut String, each: char) {
    let mut bytes = [0; 4];
    let text = each.encode_utf8(&mut bytes);
    let plain = each.is_ascii_alphanumeric() || matches!(each, '-' | '_' | '~' | ':' | '@');
    // A single character that is a name by itself can stand in a token.
    if plain || (each != '%' && TopicName::parse(text).is_ok()) {
        name.push_str(text);
        return;
    }
    for byte in text.bytes() {
        name.push('%');
        for digit in [byte >> 4, byte & 15] {
            let digit = char::from_digit(u32::from(digit), 16).unwrap_or('0');
            name.push(digit.to_ascii_uppercase());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(path: &str) -> String {
        topic_of(&format!("{ROOT}{path}")).expect("a stream").as_str().to_owned()
    }

    #[test]
    fn segments_are_tokens() {
        assert_eq!(name("orders/eu/created"), "orders.eu.created");
        assert_eq!(name("chat-1_a~b:c@d"), "chat-1_a~b:c@d");
        assert_eq!(name("%D0%B7%D0%B0%D0%BA%D0%B0%D0%B7"), "заказ");
    }

    #[test]
    fn what_a_token_cannot_hold_is_escaped_and_no_two_paths_share_a_topic() {
        let paths = ["a.b", "a/b", "a%2Fb", "a%252Eb", "a%20b", "a*", "a>", "a%00", "a%5Cb", "a+b"];
        let names: Vec<_> = paths.iter().map(|path| name(path)).collect();
        let expected =
            ["a%2Eb", "a.b", "a%2Fb", "a%252Eb", "a%20b", "a%2A", "a%3E", "a%00", "a%5Cb", "a+b"];
        assert_eq!(names, expected);
    }

    #[test]
    fn what_is_no_stream_is_refused() {
        for (path, code) in [
            ("", ErrorCode::InvalidTopic),
            ("a//b", ErrorCode::InvalidTopic),
            ("a/", ErrorCode::InvalidTopic),
            ("%FF", ErrorCode::InvalidTopic),
            ("$events/a", ErrorCode::ReservedName),
            ("__ds/subscriptions/a", ErrorCode::NotOffered),
        ] {
            assert_eq!(topic_of(&format!("{ROOT}{path}")).unwrap_err().code, code, "{path}");
        }
        assert!(topic_of(&format!("{ROOT}{}", "x".repeat(255))).is_ok());
        assert!(topic_of(&format!("{ROOT}{}", "x".repeat(256))).is_err());
    }
}
