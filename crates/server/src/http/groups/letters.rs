//! Dead letters of a group: listed, shown, redriven, removed.

use std::sync::Arc;

use axum::Json as JsonAnswer;
use axum::extract::State;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use gapless_broker::{LETTERS_MAX, LetterFilter};
use gapless_core::{Pattern, Seq, TopicName};
use gapless_protocol::ErrorCode;
use serde_json::{Value, json};

use crate::http::listener::server::{Shared, blocking};
use crate::http::topics::TopicPath;
use crate::http::topics::messages::SeqPath;
use crate::http::values::params::Params;
use crate::http::values::problem::Problem;
use crate::json::put_dead_letter;

/// Letters in one answer, unless the request says otherwise.
const LIST_DEFAULT: usize = 50;
/// Bytes of the letters in one answer, about.
const ANSWER_BYTES: usize = 8 * 1024 * 1024;

pub(super) async fn list(
    State(shared): State<Arc<Shared>>,
    TopicPath(group): TopicPath,
    mut params: Params,
) -> Result<Response, Problem> {
    let which = filter(&mut params)?;
    let limit = params.count("limit", LIST_DEFAULT, LETTERS_MAX)?;
    params.finish()?;
    let broker = shared.broker.clone();
    // One more shows whether there are more.
    let letters = blocking(move || broker.find_dead_letters(&group, &which, limit + 1)).await??;
    let mut shown = Vec::new();
    let mut next = None;
    for (at, letter) in letters.iter().enumerate() {
        if at == limit || shown.len() >= ANSWER_BYTES {
            next = Some(letter.seq.0);
            break;
        }
        put_dead_letter(letter, &mut shown);
        shown.push(b',');
    }
    if letters.len() == LETTERS_MAX && next.is_none() {
        next = letters.last().map(|last| last.seq.next().0);
    }
    shown.pop();
    let mut out = b"{\"letters\":[".to_vec();
    out.extend_from_slice(&shown);
    out.extend_from_slice(format!("],\"next\":{}}}", json!(next)).as_bytes());
    Ok(json_answer(out))
}

pub(super) async fn show(
    State(shared): State<Arc<Shared>>,
    TopicPath(group): TopicPath,
    SeqPath(seq): SeqPath,
    params: Params,
) -> Result<Response, Problem> {
    params.finish()?;
    let (broker, name) = (shared.broker.clone(), group.clone());
    let letter = blocking(move || broker.dead_letter(&name, seq)).await??;
    let letter = letter.ok_or_else(|| no_letter(&group, seq))?;
    let mut out = Vec::new();
    put_dead_letter(&letter, &mut out);
    Ok(json_answer(out))
}

pub(super) async fn redrive(
    State(shared): State<Arc<Shared>>,
    TopicPath(group): TopicPath,
    mut params: Params,
) -> Result<JsonAnswer<Value>, Problem> {
    let which = filter(&mut params)?;
    let rate = params.number::<u32>("rate")?;
    params.finish()?;
    let broker = shared.broker.clone();
    let done = blocking(move || broker.redrive(&group, &which, rate)).await??;
    Ok(JsonAnswer(json!({ "moved": done.moved, "goes_on": done.goes_on })))
}

pub(super) async fn remove(
    State(shared): State<Arc<Shared>>,
    TopicPath(group): TopicPath,
    mut params: Params,
) -> Result<JsonAnswer<Value>, Problem> {
    let which = filter(&mut params)?;
    let all = params.switch("all")?.unwrap_or(false);
    params.finish()?;
    if which == LetterFilter::all() && !all {
        return Err(Problem::bad_request("say which, or `all=true`: they are gone for ever"));
    }
    let broker = shared.broker.clone();
    let removed = blocking(move || broker.remove_dead_letters(&group, &which)).await??;
    Ok(JsonAnswer(json!({ "removed": removed })))
}

pub(super) async fn end(
    State(shared): State<Arc<Shared>>,
    TopicPath(group): TopicPath,
    SeqPath(seq): SeqPath,
    params: Params,
) -> Result<StatusCode, Problem> {
    params.finish()?;
    let (broker, name) = (shared.broker.clone(), group.clone());
    let one = LetterFilter::one(seq);
    match blocking(move || broker.remove_dead_letters(&name, &one)).await?? {
        0 => Err(no_letter(&group, seq)),
        _ => Ok(StatusCode::NO_CONTENT),
    }
}

fn filter(params: &mut Params) -> Result<LetterFilter, Problem> {
    let topic = params
        .text("topic")?
        .map(|text| Pattern::parse(&text).map_err(|why| Problem::new(ErrorCode::BadPattern, why)));
    Ok(LetterFilter {
        from: params.number("from")?.map(Seq),
        to: params.number("to")?.map(Seq),
        topic: topic.transpose()?,
        error: params.text("error")?,
        key: params.bytes("key")?,
    })
}

fn no_letter(group: &TopicName, seq: Seq) -> Problem {
    let detail = format_args!("group {group} has no dead letter {seq}, or not any more");
    Problem::new(ErrorCode::NoSuchMessage, detail)
}

fn json_answer(out: Vec<u8>) -> Response {
    let json = HeaderValue::from_static("application/json");
    ([(header::CONTENT_TYPE, json)], out).into_response()
}
