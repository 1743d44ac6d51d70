# Makes, keeps and drops many objects of many sizes, and prints what became of them.
import collections, hashlib, json, random, re, threading, zlib

random.seed(7)
table = {}
for at in range(30_000):
    table[f"key {at % 10_000}"] = [random.randrange(1 << 40) for _ in range(at % 13)]
text = json.dumps(table, sort_keys=True)
print(len(table), hashlib.sha256(text.encode()).hexdigest())
print(hashlib.sha256(zlib.compress(text.encode())).hexdigest())
print(collections.Counter(re.findall(r"\d{3}", text)).most_common(5))
queue = collections.deque(maxlen=3_000)
for at in range(30_000):
    queue.append(bytes([at % 251]) * (at % 5_000))
print(sum(map(sum, queue)))

sums = [0] * 4


def work(number):
    own = random.Random(number)
    for _ in range(20_000):
        sums[number] += len(str(own.random()) * own.randrange(30))


threads = [threading.Thread(target=work, args=[number]) for number in range(4)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
print(sums)
