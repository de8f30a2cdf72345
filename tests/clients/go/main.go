// Small programs around Apache's Go client; tests/clients drives them.
//
// Every result is one JSON object per line on standard output.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
	"github.com/apache/rocketmq-client-go/v2/rlog"
)

var output sync.Mutex

func event(kind string, values map[string]interface{}) {
	output.Lock()
	defer output.Unlock()
	values["event"] = kind
	values["at"] = time.Now().UnixNano()
	line, err := json.Marshal(values)
	if err != nil {
		panic(err)
	}
	fmt.Println(string(line))
}

func main() {
	options := map[string]string{}
	for _, word := range os.Args[2:] {
		name, value, found := strings.Cut(word, "=")
		if !found {
			panic("write " + word + " as name=value")
		}
		options[name] = value
	}
	level, found := options["log"]
	if !found {
		level = "error"
	}
	rlog.SetLogLevel(level)
	switch os.Args[1] {
	case "send":
		send(options)
	case "consume":
		consume(options)
	default:
		panic("no program " + os.Args[1])
	}
}

func number(options map[string]string, name string, otherwise int) int {
	text, found := options[name]
	if !found {
		return otherwise
	}
	value, err := strconv.Atoi(text)
	if err != nil {
		panic(err)
	}
	return value
}

// send sends count messages with keys different sharding keys, pause ms apart; the body is "key:step".
// With retry=true a failed send is tried again with the same message until it is acknowledged; tag is every message's tag.
func send(options map[string]string) {
	client, err := rocketmq.NewProducer(
		producer.WithNameServer(strings.Split(options["ns"], ";")),
		producer.WithGroupName("go-producers"),
		producer.WithQueueSelector(producer.NewHashQueueSelector()),
		producer.WithRetry(2),
	)
	if err != nil {
		panic(err)
	}
	if err := client.Start(); err != nil {
		panic(err)
	}
	event("started", map[string]interface{}{})
	for n := 0; n < number(options, "count", 10); n++ {
		key := fmt.Sprintf("key-%d", n%number(options, "keys", 1))
		message := primitive.NewMessage(options["topic"], []byte(fmt.Sprintf("%s:%d", key, n)))
		message.WithKeys([]string{key})
		message.WithShardingKey(key)
		if options["tag"] != "" {
			message.WithTag(options["tag"])
		}
		time.Sleep(time.Duration(number(options, "pause", 0)) * time.Millisecond)
		result, err := client.SendSync(context.Background(), message)
		for err != nil && options["retry"] == "true" {
			time.Sleep(100 * time.Millisecond)
			result, err = client.SendSync(context.Background(), message)
		}
		if err != nil {
			event("failed", map[string]interface{}{"key": key, "body": n, "text": err.Error()})
			continue
		}
		event("ack", map[string]interface{}{
			"key": key, "body": n, "status": int(result.Status), "offset": result.QueueOffset,
			"queue": fmt.Sprintf("%s:%d", result.MessageQueue.BrokerName, result.MessageQueue.QueueId),
			"msgId": result.MsgID, "offsetMsgId": result.OffsetMsgID,
		})
	}
	_ = client.Shutdown()
	event("finished", map[string]interface{}{})
}

// consume reports each message of an ordered push consumer until expected successes or seconds.
// Without expression it wants all messages; the selector has no type, as in most programs.
func consume(options map[string]string) {
	named := consumer.WithInstance("DEFAULT")
	if options["instance"] != "" {
		named = consumer.WithInstance(options["instance"])
	}
	client, err := rocketmq.NewPushConsumer(
		named,
		consumer.WithNameServer(strings.Split(options["ns"], ";")),
		consumer.WithGroupName(options["group"]),
		consumer.WithConsumeFromWhere(consumer.ConsumeFromFirstOffset),
		consumer.WithConsumerOrder(options["mode"] != "concurrently"),
		consumer.WithMaxReconsumeTimes(int32(number(options, "max-reconsume", -1))),
	)
	if err != nil {
		panic(err)
	}
	remaining := make(chan struct{}, 1<<20)
	var guard sync.Mutex
	failures := map[string]int{}
	err = client.Subscribe(options["topic"], consumer.MessageSelector{Expression: options["expression"]},
		func(_ context.Context, messages ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
			for _, message := range messages {
				values := map[string]interface{}{
					"body": string(message.Body), "offset": message.QueueOffset,
					"queue":     fmt.Sprintf("%s:%d", message.Queue.BrokerName, message.Queue.QueueId),
					"reconsume": message.ReconsumeTimes, "keys": message.GetKeys(), "topic": message.Topic,
				}
				event("deliver", values)
				guard.Lock()
				failures[string(message.Body)]++
				attempt := failures[string(message.Body)]
				guard.Unlock()
				fail := options["fail"]
				if fail != "" && strings.Contains(string(message.Body), fail) && attempt <= number(options, "times", 1) {
					event("fail", values)
					return consumer.SuspendCurrentQueueAMoment, nil
				}
				event("done", values)
			}
			for range messages {
				remaining <- struct{}{}
			}
			return consumer.ConsumeSuccess, nil
		})
	if err != nil {
		panic(err)
	}
	if err := client.Start(); err != nil {
		panic(err)
	}
	event("started", map[string]interface{}{})
	end := time.After(time.Duration(number(options, "seconds", 30)) * time.Second)
wait:
	for n := 0; n < number(options, "expected", 1); n++ {
		select {
		case <-remaining:
		case <-end:
			break wait
		}
	}
	_ = client.Shutdown()
	event("finished", map[string]interface{}{})
}
