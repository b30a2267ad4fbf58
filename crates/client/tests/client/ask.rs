//! Questions and their answers.

use gapless_client::{
    AskError, ClientLimits, Fate, Message, Position, Seq, TopicName, TopicSettings,
};
use gapless_core::{RecordsBuilder, Timestamp};
use gapless_protocol::{
    Cancelled, CellValue, Done, ErrorAnswer, ErrorCode, Found, NotFound, StatsText, TopicInfo,
    TopicInfos, Verb,
};

use crate::server::{BRIEF, Server};

fn orders() -> TopicName {
    "orders".parse().unwrap()
}

fn info() -> TopicInfo {
    TopicInfo {
        name: orders(),
        id: 1,
        first: Seq(1),
        next: Seq(5),
        bytes: 9,
        settings: TopicSettings::default(),
    }
}

#[tokio::test]
async fn every_question_gets_its_answer() {
    let server = Server::tcp().await;
    let (client, mut peer) = server.client().await;
    let serve = async {
        let mut builder = RecordsBuilder::default();
        builder.push(&Message::new("x")).unwrap();
        let records = builder.finish();
        let (seq, position, time) = (Seq(3), Position(4), Timestamp(5));
        let mut answers: Vec<(&str, Verb)> = vec![
            ("TopicCreate", info().into()),
            ("TopicConfigure", info().into()),
            ("TopicDescribe", info().into()),
            ("TopicList", TopicInfos { topics: vec![info()], more: true }.into()),
            ("TopicPurge", Done.into()),
            ("TopicDelete", Done.into()),
            ("Get", Found { seq, position, time, records }.into()),
            ("Read", NotFound.into()),
            ("CellRead", CellValue { value: Some("7".into()) }.into()),
            ("CancelDelayed", Cancelled { was_waiting: true }.into()),
            ("Clients", gapless_protocol::ClientList::default().into()),
            ("Stats", StatsText { json: "{}".into() }.into()),
        ];
        for (kind, answer) in answers.drain(..) {
            let (_, ids) = peer.expect(kind).await;
            peer.send(answer, ids).await;
        }
        peer
    };
    let ask = async {
        let settings = TopicSettings::default();
        assert_eq!(client.create_topic(&orders(), settings).await, Ok(info()));
        assert_eq!(client.configure_topic(&orders(), settings).await, Ok(info()));
        assert_eq!(client.describe_topic(&orders()).await, Ok(info()));
        let page = client.topics(&">".parse().unwrap(), None, 1).await.unwrap();
        assert!(page.more && page.topics == [info()]);
        assert_eq!(client.purge_topic(&orders(), Seq(2)).await, Ok(()));
        assert_eq!(client.delete_topic(&orders()).await, Ok(()));
        let latest = client.latest(&orders(), "key").await.unwrap().unwrap();
        assert_eq!((latest.seq, latest.message), (Seq(3), Message::new("x")));
        assert_eq!(client.read(&orders(), Seq(9)).await, Ok(None));
        assert_eq!(client.cell("cursor").await, Ok(Some("7".into())));
        assert_eq!(client.cancel_delayed(Position(1)).await, Ok(true));
        assert_eq!(client.clients(0, 10).await.unwrap().clients, []);
        assert_eq!(client.stats().await, Ok("{}".into()));
    };
    let (mut peer, ()) = tokio::join!(serve, ask);
    peer.expect_nothing(&client).await;
}

#[tokio::test]
async fn an_error_and_a_wrong_answer_are_told() {
    let server = Server::tcp().await;
    let (client, mut peer) = server.client().await;
    let serve = async {
        let (_, ids) = peer.expect("TopicDescribe").await;
        peer.send(ErrorAnswer::new(ErrorCode::UnknownTopic, "no such topic"), ids).await;
        let (_, ids) = peer.expect("TopicDescribe").await;
        peer.send(Done, ids).await;
    };
    let topic = orders();
    let ask = async { (client.describe_topic(&topic).await, client.describe_topic(&topic).await) };
    let ((unknown, wrong), ()) = tokio::join!(ask, serve);
    let Err(AskError::Server(trouble)) = unknown else { panic!("{unknown:?}") };
    assert_eq!(trouble.known(), Some(ErrorCode::UnknownTopic));
    assert_eq!(wrong, Err(AskError::Unexpected));
}

#[tokio::test]
async fn harmless_questions_are_asked_again_and_others_are_not() {
    let server = Server::tcp().await;
    let (client, mut peer) = server.client().await;
    let topic = orders();
    let serve = async {
        peer.expect("TopicDescribe").await;
        peer.expect("TopicDelete").await;
        drop(peer);
        let mut peer = server.welcome().await;
        let (_, ids) = peer.expect("TopicDescribe").await;
        peer.send(info(), ids).await;
        peer
    };
    let (described, deleted, _peer) =
        tokio::join!(client.describe_topic(&topic), client.delete_topic(&topic), serve);
    assert_eq!(described, Ok(info()));
    assert_eq!(deleted, Err(AskError::Disconnected { fate: Fate::Unknown }));
}

#[tokio::test]
async fn a_question_nobody_answers_ends_in_time() {
    let server = Server::tcp().await;
    let limits = ClientLimits { answer_wait: BRIEF, ..ClientLimits::default() };
    let (client, _peer) = server.client_with(server.options().limits(limits)).await;
    assert_eq!(client.stats().await, Err(AskError::TimedOut));
}
