// threads.cpp: std::threads exchange heap objects through a bounded queue with a mutex and
// condition variables, and return results by futures, atomics and thread-local counters.
#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <cstdio>
#include <deque>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <numeric>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace {

constexpr int worker_count = 3;
constexpr std::uint32_t job_count = 400;

thread_local unsigned long long jobs_of_this_thread = 0;

template <typename T>
class BoundedQueue {
public:
    explicit BoundedQueue(std::size_t new_limit) : limit(new_limit) {}

    void push(T item)
    {
        std::unique_lock lock(mutex);
        has_space.wait(lock, [this] { return items.size() < limit; });
        items.push_back(std::move(item));
        has_item.notify_one();
    }

    // Return the oldest item, or nothing when the queue is closed and empty.
    std::optional<T> pop()
    {
        std::unique_lock lock(mutex);
        has_item.wait(lock, [this] { return !items.empty() || is_closed; });
        if (items.empty())
            return std::nullopt;
        std::optional<T> item(std::move(items.front()));
        items.pop_front();
        has_space.notify_one();
        return item;
    }

    void close()
    {
        std::lock_guard lock(mutex);
        is_closed = true;
        has_item.notify_all();
    }

private:
    std::mutex mutex;
    std::condition_variable has_item, has_space;
    std::deque<T> items;
    std::size_t limit;
    bool is_closed = false;
};

struct Job {
    std::uint32_t number;
    std::vector<std::uint32_t> numbers;
    std::promise<std::string> result;
};

std::string sort_and_describe(Job &job)
{
    std::sort(job.numbers.begin(), job.numbers.end());
    if (job.number % 50 == 49)
        throw std::runtime_error("job " + std::to_string(job.number) + " fails on purpose");
    auto sum = std::accumulate(job.numbers.begin(), job.numbers.end(), std::uint64_t{0});
    return "job " + std::to_string(job.number) + ": " + std::to_string(sum) + ", median " +
           std::to_string(job.numbers[job.numbers.size() / 2]);
}

struct Shared {
    BoundedQueue<std::unique_ptr<Job>> queue{32};
    std::atomic<unsigned long long> handled{0}, largest{0};
    std::mutex mutex;
    std::map<std::uint32_t, std::vector<std::uint32_t>> sorted; // protected by the mutex
    std::once_flag greeted;
    std::atomic<int> greeting_count{0};
};

void work(const std::shared_ptr<Shared> &shared)
{
    while (auto job = shared->queue.pop()) {
        std::call_once(shared->greeted, [&] { ++shared->greeting_count; });
        Job &mine = **job;
        std::uint32_t number = mine.number;
        try {
            mine.result.set_value(sort_and_describe(mine));
        } catch (const std::runtime_error &) {
            mine.result.set_exception(std::current_exception());
        }
        unsigned long long largest = shared->largest, last = mine.numbers.back();
        while (largest < last && !shared->largest.compare_exchange_weak(largest, last))
            continue;
        jobs_of_this_thread++;
        std::lock_guard lock(shared->mutex);
        shared->sorted.emplace(number, std::move(mine.numbers));
    }
    shared->handled += jobs_of_this_thread;
}

} // namespace

int main()
{
    auto shared = std::make_shared<Shared>();
    std::vector<std::thread> workers;
    for (int i = 0; i < worker_count; i++)
        workers.emplace_back(work, shared);
    std::vector<std::future<std::string>> results;
    std::uint32_t state = 17;
    for (std::uint32_t number = 0; number < job_count; number++) {
        auto job = std::make_unique<Job>();
        job->number = number;
        for (std::uint32_t i = 0; i < 1000 + number; i++)
            job->numbers.push_back((state = state * 1664525 + 1013904223) >> 8);
        results.push_back(job->result.get_future());
        shared->queue.push(std::move(job));
    }
    shared->queue.close();
    unsigned long long sum = 0, failed = 0;
    for (auto &result : results)
        try {
            for (char c : result.get())
                sum = sum * 31 + static_cast<unsigned char>(c);
        } catch (const std::runtime_error &error) {
            failed++;
            std::printf("%s\n", error.what());
        }
    for (auto &worker : workers)
        worker.join();
    unsigned long long numbers = 0;
    for (const auto &[number, values] : shared->sorted)
        for (std::uint32_t value : values)
            numbers = numbers * 31 + value + number;
    std::printf("%llu jobs, %llu failed, largest %llu, greeted %d times\n", shared->handled.load(),
                failed, shared->largest.load(), shared->greeting_count.load());
    std::printf("results %016llx, numbers %016llx, own %llu\n", sum, numbers, jobs_of_this_thread);
}
