//go:build !oldest

package main

import (
	"context"
	"fmt"
	"time"

	"github.com/apache/rocketmq-client-go/v2/admin"
	"github.com/apache/rocketmq-client-go/v2/primitive"
)

func init() {
	programs["admin"] = administer
}

// administer creates a topic, lists it, its queues and the groups, and deletes it again.
func administer(given options) {
	client, err := admin.NewAdmin(
		admin.WithResolver(primitive.NewPassthroughResolver(given.nameServers())),
		admin.WithCredentials(given.credentials()),
	)
	check(err)
	ctx := context.Background()
	check(client.CreateTopic(ctx,
		admin.WithTopicCreate(given["topic"]), admin.WithBrokerAddrCreate(given["broker"]),
		admin.WithReadQueueNums(6), admin.WithWriteQueueNums(6),
	))
	listed := func() bool {
		topics, err := client.FetchAllTopicList(ctx)
		check(err)
		for _, topic := range topics.TopicList {
			if topic == given["topic"] {
				return true
			}
		}
		return false
	}
	awaited(listed, true)
	queues, err := client.FetchPublishMessageQueues(ctx, given["topic"])
	check(err)
	names := []string{}
	for _, queue := range queues {
		names = append(names, fmt.Sprintf("%s:%d", queue.BrokerName, queue.QueueId))
	}
	groups, err := client.GetAllSubscriptionGroup(ctx, given["broker"], 3*time.Second)
	check(err)
	_, found := groups.SubscriptionGroupTable[given["group"]]
	event("created", map[string]interface{}{"queues": names, "group": found})
	check(client.DeleteTopic(ctx, admin.WithTopicDelete(given["topic"])))
	awaited(listed, false)
	check(client.Close())
	event("finished", map[string]interface{}{})
}

// awaited waits until a name server knows of a change.
func awaited(listed func() bool, wanted bool) {
	for end := time.Now().Add(30 * time.Second); listed() != wanted; time.Sleep(100 * time.Millisecond) {
		if time.Now().After(end) {
			panic(fmt.Sprintf("the topic is not listed as wanted: %v", wanted))
		}
	}
}
