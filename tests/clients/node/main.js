'use strict';
// Small programs around ali-ons, the Node client; tests/clients drives them.
// Every result is one JSON object per line on standard output.

const { Producer, Consumer, Message } = require('ali-ons');

// Warnings belong to standard error: standard output is read as JSON.
const logger = {
  info() {},
  debug() {},
  warn: (...words) => process.stderr.write(words.join(' ') + '\n'),
  error: (...words) => process.stderr.write(words.join(' ') + '\n'),
};

// The client asks for an HTTP client for its address server, which a name server's address makes needless.
const httpclient = { request() { throw new Error('no HTTP request is expected'); } };

function event(kind, values = {}) {
  process.stdout.write(JSON.stringify({ event: kind, at: Number(process.hrtime.bigint()), ...values }) + '\n');
}

function parse(words) {
  return Object.fromEntries(words.map(word => [word.slice(0, word.indexOf('=')), word.slice(word.indexOf('=') + 1)]));
}

const pause = milliseconds => new Promise(resolve => { setTimeout(resolve, milliseconds); });

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

async function send(options) {
  const producer = new Producer({ nameSrv: options.ns.split(';'), httpclient, producerGroup: 'node-producers', logger });
  producer.on('error', error => event('error', { text: error.message }));
  await producer.ready();
  event('started');
  for (let n = 0; n < Number(options.count || 10); n++) {
    const key = `key-${n % Number(options.keys || 1)}`;
    const message = new Message(options.topic, options.tags || 'TagN', `${key}:${n}`);
    message.keys = [key];
    message.shardingKey = key;
    await pause(Number(options.pause || 0));
    const result = await acknowledged(producer, message, options);
    event('ack', {
      key,
      body: n,
      status: result.sendStatus,
      offset: Number(result.queueOffset),
      queue: `${result.messageQueue.brokerName}:${result.messageQueue.queueId}`,
      msgId: result.msgId,
    });
  }
  await producer.close();
  event('finished');
}

async function consume(options) {
  const consumer = new Consumer({ nameSrv: options.ns.split(';'), httpclient, consumerGroup: options.group, logger });
  consumer.on('error', error => event('error', { text: error.message }));
  let remaining = Number(options.expected || 1);
  let finish;
  const finished = new Promise(resolve => { finish = resolve; });
  consumer.subscribe(options.topic, options.tags || '*', async message => {
    event('deliver', {
      body: message.body.toString(),
      queue: `${message.brokerName}:${message.queueId}`,
      offset: Number(message.queueOffset),
      keys: message.keys,
      tags: message.tags,
    });
    remaining -= 1;
    if (remaining === 0) finish();
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
