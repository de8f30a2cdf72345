package main

import (
	"context"
	"strings"
	"sync"
	"time"

	"github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
)

func init() {
	programs["consume"] = consume
}

// consumerOptions returns the options of a push or pull consumer from the command line.
func consumerOptions(given options) []consumer.Option {
	made := []consumer.Option{
		consumer.WithInstance(given.text("instance", "DEFAULT")),
		consumer.WithNameServer(given.nameServers()),
		consumer.WithGroupName(given["group"]),
		consumer.WithConsumeFromWhere(consumer.ConsumeFromFirstOffset),
		consumer.WithConsumerOrder(given.text("mode", "orderly") == "orderly"),
		consumer.WithMaxReconsumeTimes(int32(given.number("max-reconsume", -1))),
		consumer.WithNamespace(given["namespace"]),
		consumer.WithCredentials(given.credentials()),
		consumer.WithConsumeMessageBatchMaxSize(given.number("batch", 1)),
		consumer.WithPullBatchSize(int32(given.number("pull-batch", 32))),
	}
	if given.is("broadcasting") {
		made = append(made, consumer.WithConsumerModel(consumer.BroadCasting))
	}
	return append(made, laterConsumerOptions(given)...)
}

// selector leaves out the type for tags, as most programs do; without an expression it selects all messages.
func selector(given options) consumer.MessageSelector {
	if sql, found := given["sql"]; found {
		return consumer.MessageSelector{Type: consumer.SQL92, Expression: sql}
	}
	return consumer.MessageSelector{Expression: given["expression"]}
}

// consume reports each message of a push consumer until expected successes or seconds.
// Messages whose body contains fail are refused at their first times deliveries.
func consume(given options) {
	client, err := rocketmq.NewPushConsumer(consumerOptions(given)...)
	check(err)
	remaining := make(chan struct{}, 1<<20)
	var guard sync.Mutex
	failures := map[string]int{}
	listen := func(ctx context.Context, messages ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
		failed := false
		for _, message := range messages {
			values := messageValues(message)
			values["together"] = len(messages)
			event("deliver", values)
			guard.Lock()
			failures[string(message.Body)]++
			attempt := failures[string(message.Body)]
			guard.Unlock()
			fail := given["fail"]
			if fail != "" && strings.Contains(string(message.Body), fail) && attempt <= given.number("times", 1) {
				event("fail", values)
				failed = true
				continue
			}
			event("done", values)
		}
		if failed {
			return refusal(ctx, given), nil
		}
		for range messages {
			remaining <- struct{}{}
		}
		return consumer.ConsumeSuccess, nil
	}
	for _, topic := range strings.Split(given["topic"], ",") {
		check(client.Subscribe(topic, selector(given), listen))
	}
	check(client.Start())
	event("started", map[string]interface{}{})
	end := time.After(time.Duration(given.number("seconds", 30)) * time.Second)
wait:
	for n := 0; n < given.number("expected", 1); n++ {
		select {
		case <-remaining:
		case <-end:
			break wait
		}
	}
	time.Sleep(time.Duration(given.number("linger", 0)) * time.Millisecond)
	_ = client.Shutdown()
	event("finished", map[string]interface{}{})
}

// refusal returns the result that makes messages come again, after the given pause (orderly) or delay level (concurrent).
func refusal(ctx context.Context, given options) consumer.ConsumeResult {
	if given.text("mode", "orderly") == "orderly" {
		if context, found := primitive.GetOrderlyCtx(ctx); found {
			context.SuspendCurrentQueueTimeMillis = given.number("suspend", context.SuspendCurrentQueueTimeMillis)
		}
		return consumer.SuspendCurrentQueueAMoment
	}
	if context, found := primitive.GetConcurrentlyCtx(ctx); found {
		context.DelayLevelWhenNextConsume = given.number("delay-level", 0)
	}
	return consumer.ConsumeRetryLater
}
