'use strict';
// Small programs that use ali-ons, the Node client; tests/clients starts them.
// Every result is one JSON object per line on standard output.

const { Producer, Consumer, Message } = require(process.env.CLIENT || 'ali-ons');

// Warnings go to standard error, because standard output is read as JSON.
const logger = {
  info() {},
  debug() {},
  warn: (...words) => process.stderr.write(words.join(' ') + '\n'),
  error: (...words) => process.stderr.write(words.join(' ') + '\n'),
};

// The client needs an HTTP client for its address server, which it uses only without a name server's address.
const httpclient = { request() { throw new Error('no HTTP request is expected'); } };

function event(kind, values = {}) {
  process.stdout.write(JSON.stringify({ event: kind, at: Number(process.hrtime.bigint()), ...values }) + '\n');
}

function parse(words) {
  return Object.fromEntries(words.map(word => [word.slice(0, word.indexOf('=')), word.slice(word.indexOf('=') + 1)]));
}

const pause = milliseconds => new Promise(resolve => { setTimeout(resolve, milliseconds); });

// Options that producers and consumers share.
function settings(options) {
  const common = { nameSrv: options.ns.split(';'), httpclient, logger };
  if (options.addressed) {
    common.nameSrv = undefined;
    common.httpclient = { request: async () => ({ status: 200, data: options.ns }) };
  }
  if (options.ak) Object.assign(common, { accessKey: options.ak, secretKey: options.sk });
  if (options.instance) common.instanceName = options.instance;
  if (options.rebalance) common.rebalanceInterval = Number(options.rebalance);
  if (options.namespace) common.namespace = options.namespace;
  return common;
}

// With retry=true a failed send is tried again with the same message until it is acknowledged.
async function acknowledged(producer, message, options) {
  for (;;) {
    try {
      return await producer.send(message);
    } catch (error) {
      if (options.retry !== 'true') throw error;
      await pause(100);
    }
  }
}

function written(options, key, n) {
  const body = `${key}:${n}`.padEnd(Number(options.size || 0), '.');
  const message = new Message(options.topic, options.tags || 'TagN', body);
  message.keys = [key, `n-${n}`];
  message.properties.colour = 'grün';
  if (options.keys) message.shardingKey = key;
  if (options.delay) message.delayTimeLevel = Number(options.delay);
  return message;
}

async function send(options) {
  const producer = new Producer({ ...settings(options), producerGroup: options.group || 'node-producers' });
  producer.on('error', error => event('error', { text: error.message }));
  await producer.ready();
  event('started');
  for (let n = 0; n < Number(options.count || 10); n++) {
    const key = `key-${n % Number(options.keys || 1)}`;
    await pause(Number(options.pause || 0));
    event('send', { key, body: n });
    try {
      const result = await acknowledged(producer, written(options, key, n), options);
      event('ack', {
        key,
        body: n,
        status: result.sendStatus,
        offset: Number(result.queueOffset),
        queue: `${result.messageQueue.brokerName}:${result.messageQueue.queueId}`,
        msgId: result.msgId,
      });
    } catch (error) {
      event('failed', { key, body: n, text: error.message });
    }
  }
  await producer.close();
  event('finished');
}

// A listener that fails the first `times` deliveries of each message whose body has `fail` in it.
function failing(options) {
  const tries = new Map();
  return body => {
    if (!options.fail || !body.includes(options.fail)) return false;
    tries.set(body, (tries.get(body) || 0) + 1);
    return tries.get(body) <= Number(options.times || 1e9);
  };
}

function described(message) {
  return {
    body: message.body.toString().replace(/\.+$/, ''),
    queue: `again:${message.queueId}`,
    offset: Number(message.queueOffset),
    topic: message.topic,
    keys: message.keys,
    tags: message.tags,
    colour: message.properties.colour,
    reconsume: message.reconsumeTimes,
    born: message.bornTimestamp,
    stored: message.storeTimestamp,
    size: message.body.length,
  };
}

async function consume(options) {
  const consumer = new Consumer({
    ...settings(options),
    consumerGroup: options.group,
    isBroadcast: options.model === 'broadcasting',
    persistent: true,
    maxReconsumeTimes: Number(options['max-reconsume'] || 16),
    pullThresholdForQueue: Number(options.threshold || 500),
    ...(options.begin ? { consumeFromWhere: 'CONSUME_FROM_FIRST_OFFSET' } : {}),
  });
  consumer.on('error', error => event('error', { text: error.message }));
  const fails = failing(options);
  let remaining = Number(options.expected || 1e9);
  let finish;
  const finished = new Promise(resolve => { finish = resolve; });
  process.stdin.on('end', finish).resume();
  const expression = options.sql ? { expressionType: 'SQL92', subString: options.sql } : options.tags || '*';
  consumer.subscribe(options.topic, expression, async (message, queue) => {
    const shown = described(message);
    // The client passes no queue for a redelivered message.
    if (queue) shown.queue = `${queue.brokerName}:${queue.queueId}`;
    event('deliver', shown);
    await pause(Number(options.work || 0));
    if (fails(shown.body)) {
      event('fail', shown);
      if (options.how === 'later') return Consumer.ACTION_RETRY;
      throw new Error('told to fail');
    }
    event('done', shown);
    remaining -= 1;
    // The client records the offset after the listener has returned.
    if (remaining === 0) setImmediate(finish);
    return undefined;
  });
  await consumer.ready();
  event('started');
  const timer = setTimeout(finish, Number(options.seconds || 30) * 1000);
  await finished;
  clearTimeout(timer);
  await consumer.close();
  event('finished');
}

const programs = { send, consume };
programs[process.argv[2]](parse(process.argv.slice(3)))
  .then(() => process.exit(0))
  .catch(error => {
    event('error', { text: error.stack });
    process.exit(1);
  });
