//! Small programs that use Apache's Rust client; tests/clients starts them.
//!
//! Every result is one JSON object per line on standard output.

use std::any::Any;
use std::collections::HashMap;
use std::io::{IsTerminal, Read, Write};
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rocketmq_client_rust::{
    AclClientRPCHook, ClientConfig, ClientError, ClientRuntime, ClientRuntimeConfig,
    ConsumeConcurrentlyContext, ConsumeConcurrentlyStatus, ConsumeOrderlyContext,
    ConsumeOrderlyStatus, DefaultLitePullConsumer, DefaultMQProducer, DefaultMQPushConsumer,
    LocalTransactionState, MQPushConsumer, MessageQueueSelector, MessageSelector,
    SelectMessageQueueByHash, SendResult, SessionCredentials, TransactionListener,
    TransactionMQProducer,
};
use rocketmq_model::common::consumer::consume_from_where::ConsumeFromWhere;
use rocketmq_model::common::message::message_ext::MessageExt;
use rocketmq_model::common::message::message_queue::MessageQueue;
use rocketmq_model::common::message::message_single::Message;
use rocketmq_model::common::message::MessageTrait;
use rocketmq_observability::TelemetryRuntimeGuard;
use rocketmq_protocol::protocol::heartbeat::message_model::MessageModel;
use rocketmq_runtime::RuntimeOwner;
use rocketmq_transport::api::RPCHook;
use serde_json::{json, Value};
use tokio::sync::Notify;

type Failure = Box<dyn std::error::Error>;

const ENDLESS: i64 = 1_000_000_000;

/// The words `name=value` of the command line.
#[derive(Clone)]
struct Options(HashMap<String, String>);

impl Options {
    fn text(&self, name: &str, otherwise: &str) -> String {
        self.0
            .get(name)
            .cloned()
            .unwrap_or_else(|| otherwise.to_owned())
    }

    fn number(&self, name: &str, otherwise: i64) -> i64 {
        self.0
            .get(name)
            .map_or(otherwise, |text| text.parse().expect("a number"))
    }

    fn has(&self, name: &str) -> bool {
        self.0.contains_key(name)
    }

    fn config(&self) -> Result<ClientConfig, ClientError> {
        let mut config = ClientConfig::builder().namesrv_addr(self.text("ns", ""));
        if self.has("instance") {
            config = config.instance_name(self.text("instance", ""));
        }
        if self.has("ca") {
            config = config
                .enable_tls(true)
                .tls_test_mode_enable(false)
                .tls_client_auth_server(true)
                .tls_client_trust_cert_path(self.text("ca", ""));
        }
        config.build()
    }

    /// The hook that signs requests, if the program has an account.
    fn signer(&self) -> Option<Arc<dyn RPCHook>> {
        let account = SessionCredentials::with_keys(self.text("ak", ""), self.text("sk", ""));
        self.has("ak")
            .then(|| Arc::new(AclClientRPCHook::new(account)) as Arc<dyn RPCHook>)
    }

    fn message(&self, key: &str, n: i64) -> Message {
        let mut body = format!("{key}:{n}").into_bytes();
        body.resize(body.len().max(self.number("size", 0) as usize), b'.');
        let mut message = Message::builder()
            .topic(self.text("topic", ""))
            .tags(self.text("tags", "TagR"))
            .key(key)
            .sharding_key(key)
            .body(body)
            .raw_property("colour", "grün")
            .expect("a property");
        if self.has("delay") {
            message = message.delay_level(self.number("delay", 0) as i32);
        }
        message.build_unchecked()
    }
}

fn event(kind: &str, mut values: Value) {
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .expect("a time after 1970");
    values["event"] = json!(kind);
    values["at"] = json!(now.as_nanos() as u64);
    let mut out = std::io::stdout().lock();
    writeln!(out, "{values}")
        .and_then(|()| out.flush())
        .expect("standard output");
}

fn acknowledged(key: &str, n: i64, result: &SendResult) {
    let queue = result.message_queue.as_ref().map(named);
    let values = json!({
        "key": key, "body": n, "queue": queue, "offset": result.queue_offset,
        "status": format!("{:?}", result.send_status),
    });
    event("ack", values);
}

fn failed(key: &str, n: i64, error: &ClientError) {
    event(
        "failed",
        json!({"key": key, "body": n, "text": error.to_string()}),
    );
}

fn named(queue: &MessageQueue) -> String {
    format!("{}:{}", queue.broker_name(), queue.queue_id())
}

fn described(message: &MessageExt) -> Value {
    let body = message.body().unwrap_or_default();
    let property = |name: &str| message.properties().get(name).map(ToString::to_string);
    json!({
        "body": String::from_utf8_lossy(&body).trim_end_matches('.'),
        "size": body.len(),
        "queue": format!("clients-0:{}", message.queue_id()),
        "offset": message.queue_offset(),
        "topic": message.topic().to_string(),
        "keys": property("KEYS"),
        "tags": property("TAGS"),
        "shardingKey": property("__SHARDINGKEY"),
        "colour": property("colour"),
        "reconsume": message.reconsume_times(),
        "born": message.born_timestamp(),
        "stored": message.store_timestamp(),
    })
}

/// Send one message after the other: by a selector, to any queue, with a callback, oneway or as one batch.
async fn send(options: Options, runtime: Arc<ClientRuntime>) -> Result<(), Failure> {
    let mut builder = DefaultMQProducer::builder(runtime)
        .client_config(options.config()?)
        .producer_group(options.text("group", "rust-producers"));
    if let Some(signer) = options.signer() {
        builder = builder.rpc_hook(signer);
    }
    let mut producer = builder.build();
    producer.start().await?;
    event("started", json!({}));
    let (count, keys) = (options.number("count", 10), options.number("keys", 1));
    let kind = options.text("kind", if keys > 1 { "orderly" } else { "sync" });
    if kind == "batch" {
        let batch = (0..count).map(|n| options.message("key-0", n)).collect();
        acknowledged("key-0", -1, &producer.send_batch(batch).await?);
    }
    let answers = Arc::new(tokio::sync::Semaphore::new(0));
    for n in 0..if kind == "batch" { 0 } else { count } {
        let key = format!("key-{}", n % keys);
        tokio::time::sleep(Duration::from_millis(options.number("pause", 0) as u64)).await;
        event("send", json!({"key": key, "body": n}));
        while let Err(error) = send_one(&producer, &kind, &options, &key, n, &answers).await {
            if options.text("retry", "") != "true" {
                failed(&key, n, &error);
                break;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }
    if kind == "async" {
        let _ = answers.acquire_many(count as u32).await?;
    }
    producer.shutdown().await;
    Ok(())
}

async fn send_one(
    producer: &DefaultMQProducer,
    kind: &str,
    options: &Options,
    key: &str,
    n: i64,
    answers: &Arc<tokio::sync::Semaphore>,
) -> Result<(), ClientError> {
    let message = options.message(key, n);
    let result = match kind {
        "oneway" => return producer.send_oneway(message).await,
        "async" => {
            let (key, answers) = (key.to_owned(), answers.clone());
            let callback = move |result: Option<&SendResult>, error: Option<&ClientError>| {
                result.inspect(|result| acknowledged(&key, n, result));
                error.inspect(|error| failed(&key, n, error));
                answers.add_permits(1);
            };
            return producer.send_with_callback(message, callback).await;
        }
        "orderly" => {
            let hash = SelectMessageQueueByHash;
            let choose = |queues: &[MessageQueue], message: &Message, key: &String| {
                hash.select(queues, message, key)
            };
            producer
                .send_with_selector(message, choose, key.to_owned())
                .await?
        }
        _ => producer.send(message).await?,
    };
    result.inspect(|result| acknowledged(key, n, result));
    Ok(())
}

/// The handling of each message by a listener, and the test for the end.
struct Work {
    options: Options,
    tries: Mutex<HashMap<String, i64>>,
    remaining: AtomicI64,
    over: Arc<Notify>,
}

impl Work {
    fn new(options: Options) -> Arc<Self> {
        let remaining = AtomicI64::new(options.number("expected", ENDLESS));
        Arc::new(Self {
            options,
            tries: Mutex::default(),
            remaining,
            over: Arc::default(),
        })
    }

    /// Return whether all of *messages* are done.
    fn consume(&self, messages: &[&MessageExt]) -> bool {
        messages.iter().all(|message| self.consume_one(message))
    }

    fn consume_one(&self, message: &MessageExt) -> bool {
        let shown = described(message);
        event("deliver", shown.clone());
        std::thread::sleep(Duration::from_millis(self.options.number("work", 0) as u64));
        let body = shown["body"].as_str().unwrap_or_default().to_owned();
        if body.contains(&self.options.text("fail", "\0")) {
            let mut tries = self.tries.lock().expect("no panic");
            let tried = tries.entry(body).or_default();
            *tried += 1;
            if *tried <= self.options.number("times", ENDLESS) {
                event("fail", shown);
                return false;
            }
        }
        event("done", shown);
        if self.remaining.fetch_sub(1, Ordering::SeqCst) == 1 {
            self.over.notify_one();
        }
        true
    }

    /// Wait until enough messages are done, the time is over, or standard input is closed.
    async fn wait(&self) {
        if !std::io::stdin().is_terminal() {
            let over = self.over.clone();
            std::thread::spawn(move || {
                let _ = std::io::stdin().read_to_end(&mut Vec::new());
                over.notify_one();
            });
        }
        let seconds = Duration::from_secs(self.options.number("seconds", 30) as u64);
        let _ = tokio::time::timeout(seconds, self.over.notified()).await;
    }
}

/// Consume by a listener, in order or concurrently.
async fn consume(options: Options, runtime: Arc<ClientRuntime>) -> Result<(), Failure> {
    let model = match options.text("model", "").as_str() {
        "broadcasting" => MessageModel::Broadcasting,
        _ => MessageModel::Clustering,
    };
    let mut builder = DefaultMQPushConsumer::builder(runtime)
        .client_config(options.config()?)
        .consumer_group(options.text("group", ""))
        .message_model(model)
        .consume_from_where(ConsumeFromWhere::ConsumeFromFirstOffset)
        .rpc_hook(options.signer());
    if options.has("max-reconsume") {
        builder = builder.max_reconsume_times(options.number("max-reconsume", 0) as i32);
    }
    let mut consumer = builder.build();
    let selector = if options.has("sql") {
        MessageSelector::by_sql(options.text("sql", ""))
    } else {
        MessageSelector::by_tag(options.text("tags", "*"))
    };
    consumer
        .subscribe_with_selector(&options.text("topic", ""), Some(selector))
        .await?;
    let work = Work::new(options.clone());
    let own = work.clone();
    if options.text("mode", "orderly") == "concurrently" {
        let later = ConsumeConcurrentlyStatus::ReconsumeLater;
        consumer.register_message_listener_concurrently(
            move |messages: &[&MessageExt], _: &ConsumeConcurrentlyContext| {
                let done = own.consume(messages);
                Ok(if done {
                    ConsumeConcurrentlyStatus::ConsumeSuccess
                } else {
                    later
                })
            },
        );
    } else {
        let later = ConsumeOrderlyStatus::SuspendCurrentQueueAMoment;
        consumer.register_message_listener_orderly(
            move |messages: &[&MessageExt], _: &mut ConsumeOrderlyContext| {
                let done = own.consume(messages);
                Ok(if done {
                    ConsumeOrderlyStatus::Success
                } else {
                    later
                })
            },
        );
    }
    consumer.start().await?;
    event("started", json!({}));
    work.wait().await;
    consumer.shutdown().await;
    Ok(())
}

/// Poll messages, and commit their offsets.
async fn poll(options: Options, runtime: Arc<ClientRuntime>) -> Result<(), Failure> {
    let mut builder = DefaultLitePullConsumer::builder(runtime)
        .client_options(options.config()?.into())
        .consumer_group(options.text("group", ""))
        .consume_from_where(ConsumeFromWhere::ConsumeFromFirstOffset)
        .auto_commit(false);
    if let Some(signer) = options.signer() {
        builder = builder.rpc_hook(signer);
    }
    let consumer = builder.build()?;
    let (topic, tags) = (options.text("topic", ""), options.text("tags", "*"));
    consumer.subscribe_with_expression(&topic, &tags).await?;
    consumer.start().await?;
    event("started", json!({}));
    let end = Instant::now() + Duration::from_secs(options.number("seconds", 30) as u64);
    let mut remaining = options.number("expected", ENDLESS);
    while remaining > 0 && Instant::now() < end {
        for message in consumer.poll_with_timeout(500).await {
            event("polled", described(&message));
            remaining -= 1;
        }
        consumer.commit_all().await?;
    }
    consumer.shutdown().await;
    Ok(())
}

/// Decides each transaction by the number in the body: every third is committed, rolled back, or asked about once.
struct Decisions;

fn decision(message: &dyn MessageTrait, unknown: LocalTransactionState) -> LocalTransactionState {
    let body = message
        .get_body()
        .map(|body| String::from_utf8_lossy(body).into_owned());
    let n: i64 = body
        .and_then(|text| text.rsplit(':').next()?.parse().ok())
        .unwrap_or_default();
    match n % 3 {
        0 => LocalTransactionState::CommitMessage,
        1 => LocalTransactionState::RollbackMessage,
        _ => unknown,
    }
}

impl TransactionListener for Decisions {
    fn execute_local_transaction(
        &self,
        message: &dyn MessageTrait,
        _: Option<&(dyn Any + Send + Sync)>,
    ) -> LocalTransactionState {
        decision(message, LocalTransactionState::Unknown)
    }

    fn check_local_transaction(&self, message: &MessageExt) -> LocalTransactionState {
        event("check", described(message));
        decision(message, LocalTransactionState::CommitMessage)
    }
}

/// Send transactions, and answer the broker's checks.
async fn transact(options: Options, runtime: Arc<ClientRuntime>) -> Result<(), Failure> {
    let mut producer = TransactionMQProducer::builder(runtime)
        .client_config(options.config()?)
        .producer_group(options.text("group", "rust-transactions"))
        .transaction_listener(Decisions)
        .build();
    producer.start().await?;
    event("started", json!({}));
    for n in 0..options.number("count", 6) {
        let message = options.message("key-0", n);
        producer
            .send_message_in_transaction::<(), _>(message, None)
            .await?;
        event("ack", json!({"key": "key-0", "body": n}));
    }
    Work::new(options).wait().await;
    producer.shutdown().await;
    Ok(())
}

fn main() -> Result<(), Failure> {
    let mut words = std::env::args().skip(1);
    let program = words.next().expect("a program");
    let pairs = words.map(|word| {
        let (name, value) = word.split_once('=').expect("name=value");
        (name.to_owned(), value.to_owned())
    });
    let options = Options(pairs.collect());
    let owner = RuntimeOwner::new()?;
    let telemetry = TelemetryRuntimeGuard::noop();
    let context = owner.root_context().component("clients");
    let runtime =
        ClientRuntime::try_new(context, ClientRuntimeConfig::default(), telemetry.handle())?;
    let own = runtime.clone();
    let result: Result<(), Failure> = owner.block_on(async move {
        let result = match program.as_str() {
            "send" => send(options, own.clone()).await,
            "consume" => consume(options, own.clone()).await,
            "poll" => poll(options, own.clone()).await,
            "transact" => transact(options, own.clone()).await,
            _ => panic!("no program {program}"),
        };
        own.shutdown().await;
        result
    });
    result?;
    event("finished", json!({}));
    Ok(())
}
