//go:build !oldest

package main

import (
	"context"
	"fmt"
	"time"

	"github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/consumer"
)

func init() {
	programs["poll"] = poll
	programs["pull"] = pull
}

// poll polls expected messages and acknowledges them; those whose body contains fail it hands back at their first delivery.
func poll(given options) {
	client, err := rocketmq.NewPullConsumer(consumerOptions(given)...)
	check(err)
	check(client.Subscribe(given["topic"], selector(given)))
	check(client.Start())
	event("started", map[string]interface{}{})
	end := time.Now().Add(time.Duration(given.number("seconds", 30)) * time.Second)
	for done := 0; done < given.number("expected", 1) && time.Now().Before(end); {
		request, err := client.Poll(context.Background(), time.Second)
		if consumer.IsNoNewMsgError(err) {
			continue
		}
		check(err)
		result := consumer.ConsumeSuccess
		for _, message := range request.GetMsgList() {
			values := messageValues(message)
			event("deliver", values)
			if given["fail"] != "" && message.ReconsumeTimes == 0 {
				result = consumer.ConsumeRetryLater
				continue
			}
			event("done", values)
			done++
		}
		client.ACK(context.Background(), request, result)
	}
	check(client.Shutdown())
	event("finished", map[string]interface{}{})
}

// pull reads each queue to its end from where the group stands, in pulls of count messages, and stores how far it has come.
func pull(given options) {
	client, err := rocketmq.NewPullConsumer(consumerOptions(given)...)
	check(err)
	check(client.Subscribe(given["topic"], selector(given)))
	check(client.Start())
	event("started", map[string]interface{}{})
	end := time.Now().Add(time.Duration(given.number("seconds", 30)) * time.Second)
	for done := 0; done < given.number("expected", 1) && time.Now().Before(end); {
		result, err := client.Pull(context.Background(), given.number("count", 32))
		check(err)
		event("pulled", map[string]interface{}{
			"status": int(result.Status), "next": result.NextBeginOffset, "min": result.MinOffset, "max": result.MaxOffset,
		})
		for _, message := range result.GetMessageExts() {
			event("done", messageValues(message))
			done++
			check(client.UpdateOffset(message.Queue, message.QueueOffset+1))
			current, err := client.CurrentOffset(message.Queue)
			check(err)
			if current != message.QueueOffset+1 {
				event("failed", map[string]interface{}{"text": fmt.Sprintf("stands at %d", current)})
			}
		}
		check(client.PersistOffset(context.Background(), given["topic"]))
	}
	check(client.Shutdown())
	event("finished", map[string]interface{}{})
}
