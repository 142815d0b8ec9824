"""Many clients cancel, expire and disconnect at random, and the daemon returns to its initial resource use."""

import os
import random
import threading

import grpc
from daemon import Daemon, reason_of
from waiting import wait_until

CLIENTS = 12
REQUESTS_PER_CLIENT = 40
PROMPTS = ["Once upon a time", "The little dragon", "Lily and Tom went to the park. They " * 20]


def make(api, prompt, seed):
    request = api.GenerateRequest(text=prompt)
    request.sampling.temperature = 1
    request.sampling.seed = seed
    request.stopping.max_tokens = 40
    request.stopping.ignore_eos = True
    request.output.stream = True
    request.output.token_ids = True
    return request


def ids_of(stream):
    return [token for message in stream if message.HasField("delta") for token in message.delta.token_ids]


class Client(threading.Thread):
    """Sends its requests one after another, each with a randomly chosen ending."""

    def __init__(self, api, daemon, number, expected):
        super().__init__()
        self.api, self.daemon, self.expected = api, daemon, expected
        self.random = random.Random(number)
        self.number = number
        self.ends = {"whole": 0, "cancel": 0, "rpc": 0, "deadline": 0, "disconnect": 0}
        self.failure = None

    def run(self):
        try:
            for i in range(REQUESTS_PER_CLIENT):
                self.one(i)
        except Exception as failure:  # reported by the test
            self.failure = failure

    def one(self, i):
        end = self.random.choice(list(self.ends))
        prompt, seed = self.random.choice(PROMPTS), self.random.randrange(3)
        request = make(self.api, prompt, seed)
        request.request_id = f"storm-{self.number}-{i}"
        with self.daemon.channel() as channel:
            stub = self.api.GenerationServiceStub(channel)
            if end == "deadline":
                request.timeout.nanos = self.random.randrange(1, 20) * 1_000_000
            stream = stub.Generate(request)
            try:
                if end in ("whole", "deadline"):
                    assert ids_of(stream) == self.expected[prompt, seed]
                    end = "whole"
                else:
                    for _ in range(self.random.randrange(4)):
                        next(stream)
                    if end == "cancel":
                        stream.cancel()
                    elif end == "rpc":
                        stub.Cancel(self.api.CancelRequest(request_id=request.request_id))
                        ids_of(stream)
            except (grpc.RpcError, StopIteration) as error:
                self.check(end, error)
        # Leaving the block closes the connection, which is the "disconnect" of a stream that still runs.
        self.ends[end] += 1

    def check(self, end, error):
        if isinstance(error, grpc.RpcError) and end in ("rpc", "deadline"):
            assert reason_of(error)[0] in ("CANCELLED_BY_CALLER", "TIMEOUT"), error


def threads_and_files(pid):
    return len(os.listdir(f"/proc/{pid}/task")), len(os.listdir(f"/proc/{pid}/fd"))


def test_storm_leaks_no_threads_or_descriptors(api, tmp_path):
    settings = ["kv_cache.page_size=16", "kv_cache.capacity_bytes=4MiB", "scheduler.admission=overcommit"]
    with Daemon(tmp_path, settings=settings) as daemon:
        daemon.wait_serving()
        with daemon.channel() as channel:
            stub = api.GenerationServiceStub(channel)
            expected = {(p, s): ids_of(stub.Generate(make(api, p, s))) for p in PROMPTS for s in range(3)}
        warm = [Client(api, daemon, 100 + n, expected) for n in range(CLIENTS)]
        run_all(warm)  # the number of gRPC's threads and connections settles
        before = settled(api, daemon)
        clients = [Client(api, daemon, n, expected) for n in range(CLIENTS)]
        run_all(clients)
        after = settled(api, daemon)
        ends = {end: sum(client.ends[end] for client in clients) for end in clients[0].ends}
        assert min(ends.values()) >= 20, ends
        # gRPC may keep one polling thread more or less. Nothing may grow with the number of requests.
        assert after[0] <= before[0] + 4 and after[1] <= before[1] + 4, (before, after)
        with daemon.channel() as channel:
            stub = api.GenerationServiceStub(channel)
            assert ids_of(stub.Generate(make(api, PROMPTS[0], 1))) == expected[PROMPTS[0], 1]


def run_all(clients):
    for client in clients:
        client.start()
    for client in clients:
        client.join(300)
        assert not client.is_alive()
        assert client.failure is None, repr(client.failure)


def settled(api, daemon):
    """Returns the numbers of threads and descriptors once no request is live and no page is in use."""
    with daemon.admin_channel() as channel:
        admin = api.AdminServiceStub(channel)

        def is_idle():
            stats = admin.GetStats(api.GetStatsRequest()).stats
            return stats.used_kv_page_count == stats.running_count == stats.waiting_count == 0

        wait_until(is_idle, "no request is live and no page in use", 30)
    assert not admin_requests(api, daemon)
    return threads_and_files(daemon.process.pid)


def admin_requests(api, daemon):
    with daemon.admin_channel() as channel:
        return api.AdminServiceStub(channel).ListRequests(api.ListRequestsRequest()).requests
