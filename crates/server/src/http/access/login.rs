//! Identities over HTTP: commands, and the login of the page.
//!
//! `POST /v1/auth` takes the same commands as the native protocol. A login takes a name and a
//! password, or a token, and answers with a cookie that scripts cannot read.

use std::sync::Arc;

use axum::extract::{Extension, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use axum::{Json as JsonAnswer, Router};
use gapless_auth::{Caller, Command, CommandError, Proof};
use gapless_protocol::ErrorCode;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::answers::command_code;
use crate::http::access::authorization::{cookie_of, refused_later, set_cookie};
use crate::http::listener::body::{Json, Whole};
use crate::http::listener::server::{Peer, Shared, blocking};
use crate::http::values::params::Params;
use crate::http::values::problem::Problem;

pub(crate) fn routes() -> Router<Arc<Shared>> {
    Router::new()
        .route("/v1/auth", post(command))
        .route("/v1/auth/login", post(login))
        .route("/v1/auth/logout", post(logout))
}

impl From<CommandError> for Problem {
    fn from(failed: CommandError) -> Self {
        Self::new(command_code(&failed), failed)
    }
}

async fn command(
    Extension(caller): Extension<Caller>,
    params: Params,
    Whole(bytes): Whole,
) -> Result<JsonAnswer<Value>, Problem> {
    params.finish()?;
    let command = Command::parse(&bytes)?;
    Ok(JsonAnswer(blocking(move || caller.command(command)).await??))
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Login {
    #[serde(default)]
    name: String,
    #[serde(default)]
    password: String,
    #[serde(default)]
    token: Option<String>,
}

async fn login(
    State(shared): State<Arc<Shared>>,
    Extension(peer): Extension<Peer>,
    params: Params,
    Json(asked): Json<Login>,
) -> Result<Response, Problem> {
    params.finish()?;
    let from = peer.address.to_string();
    let caller = match &asked.token {
        Some(token) => shared.auth.caller(Proof::Token(token), from.as_str()),
        None => shared.auth.login(&asked.name, asked.password, &from).await,
    };
    let caller = match caller {
        Ok(caller) => caller,
        Err(refused) => return Err(refused_later(refused).await),
    };
    let cookie = set_cookie(&caller.cookie()?, shared.secure)
        .ok_or_else(|| Problem::new(ErrorCode::Internal, "the cookie is not a valid header"))?;
    let answer = JsonAnswer(json!({ "name": caller.name() }));
    Ok(([(header::SET_COOKIE, cookie)], answer).into_response())
}

async fn logout(
    State(shared): State<Arc<Shared>>,
    headers: HeaderMap,
    params: Params,
) -> Result<Response, Problem> {
    params.finish()?;
    if let Some(cookie) = cookie_of(&headers) {
        shared.auth.logout(cookie);
    }
    let cookie = set_cookie("", shared.secure);
    let headers = cookie.map(|cookie| [(header::SET_COOKIE, cookie)]);
    let answer = headers.map_or_else(|| ().into_response(), IntoResponse::into_response);
    Ok((StatusCode::NO_CONTENT, answer).into_response())
}
