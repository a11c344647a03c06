// expressions.cpp: evaluates trees of virtual nodes held by unique_ptr and shared_ptr, with
// exceptions that cross frames whose locals have counted destructors.
#include <array>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace {

std::uint64_t random_state = 15;

std::uint32_t draw(std::uint32_t limit)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return static_cast<std::uint32_t>(random_state >> 16) % limit;
}

struct {
    std::size_t nodes, destroyed_nodes, frames, destroyed_frames;
} counts;

// Lives in frames that exceptions may leave.
class Frame {
public:
    explicit Frame(int number) : buffer(16, number) { counts.frames++; }
    Frame(const Frame &) = delete;
    Frame &operator=(const Frame &) = delete;
    ~Frame() { counts.destroyed_frames += buffer[0] == buffer[15]; }

private:
    std::vector<int> buffer;
};

struct EvaluationError : std::runtime_error {
    EvaluationError(const std::string &text, std::int64_t value)
        : std::runtime_error(text + " of " + std::to_string(value)), operand(value) {}
    std::int64_t operand;
};

struct Overflow final : EvaluationError {
    using EvaluationError::EvaluationError;
};

struct Node {
    Node() { counts.nodes++; }
    Node(const Node &) = delete;
    Node &operator=(const Node &) = delete;
    virtual ~Node() { counts.destroyed_nodes++; }
    virtual std::int64_t evaluate(int depth) const = 0;
    virtual std::string name() const { return "node"; }
};

class Constant final : public Node {
public:
    explicit Constant(std::int64_t new_value) : value(new_value) {}
    std::int64_t evaluate(int) const override { return value; }

private:
    std::int64_t value;
};

// Refers to a cell that many expressions share.
class Variable final : public Node {
public:
    explicit Variable(std::shared_ptr<std::int64_t> new_cell) : cell(std::move(new_cell)) {}
    std::int64_t evaluate(int) const override { return ++*cell; }
    std::string name() const override { return "variable"; }

private:
    std::shared_ptr<std::int64_t> cell;
};

class Binary final : public Node {
public:
    Binary(char new_operation, std::unique_ptr<Node> a, std::unique_ptr<Node> b)
        : operation(new_operation), left(std::move(a)), right(std::move(b)) {}

    std::int64_t evaluate(int depth) const override
    {
        Frame frame(depth);
        std::int64_t a = left->evaluate(depth + 1), b = right->evaluate(depth + 1);
        if (operation == '/' && !b)
            throw EvaluationError("division", a);
        std::int64_t result = operation == '+' ? a + b : operation == '/' ? a / b : a * b;
        if (result > 1000000000 || result < -1000000000)
            throw Overflow(left->name() + " beside " + right->name() + ": overflow", result);
        return result;
    }

    std::string name() const override { return std::string("operation ") + operation; }

private:
    char operation;
    std::unique_ptr<Node> left, right;
};

class Guarded final : public Node { // replaces the value of a failed division by its operand
public:
    explicit Guarded(std::unique_ptr<Node> new_inner) : inner(std::move(new_inner)) {}

    std::int64_t evaluate(int depth) const override
    try {
        Frame frame(depth);
        return inner->evaluate(depth + 1);
    } catch (const Overflow &) {
        throw;
    } catch (const EvaluationError &error) {
        return error.operand % 1000;
    }

private:
    std::unique_ptr<Node> inner;
};

using Cell = std::shared_ptr<std::int64_t>;

std::unique_ptr<Node> grow(const std::array<Cell, 500> &cells, int depth)
{
    if (depth == 0 || draw(12) == 0) {
        if (draw(4) == 0)
            return std::make_unique<Variable>(cells[draw(500)]);
        return std::make_unique<Constant>(static_cast<std::int64_t>(draw(30)) - 3);
    }
    if (draw(5) == 0)
        return std::make_unique<Guarded>(grow(cells, depth - 1));
    char operation = "+*+/"[draw(4)];
    auto left = grow(cells, depth - 1), right = grow(cells, depth - 1);
    return std::make_unique<Binary>(operation, std::move(left), std::move(right));
}

} // namespace

int main()
{
    auto cells = std::make_unique<std::array<Cell, 500>>();
    std::vector<std::weak_ptr<std::int64_t>> observers;
    for (Cell &cell : *cells)
        observers.push_back(cell = std::make_shared<std::int64_t>(draw(50)));
    std::vector<std::unique_ptr<Node>> expressions;
    for (int i = 0; i < 700; i++)
        expressions.push_back(grow(*cells, 8));
    long shared = 0, left = 0;
    for (const Cell &cell : *cells)
        shared += cell.use_count();
    cells.reset();

    unsigned long long sum = 0, texts = 0, failed = 0, overflows = 0;
    std::vector<std::exception_ptr> errors;
    for (const auto &expression : expressions)
        try {
            sum = sum * 31 + static_cast<unsigned long long>(expression->evaluate(0));
        } catch (const std::exception &) {
            errors.push_back(std::current_exception());
        }
    for (const auto &error : errors)
        try {
            std::rethrow_exception(error);
        } catch (const std::runtime_error &known) {
            failed++;
            overflows += dynamic_cast<const Overflow *>(&known) != nullptr;
            for (const char *c = known.what(); *c; c++)
                texts = texts * 31 + static_cast<unsigned char>(*c);
        }
    expressions.clear();
    for (const auto &observer : observers)
        left += !observer.expired();
    std::printf("sum %016llx, %llu failed, texts %016llx, %llu overflows\n", sum, failed, texts,
                overflows);
    std::printf("nodes %zu, destroyed %zu; frames %zu, destroyed %zu; uses %ld, left %ld\n",
                counts.nodes, counts.destroyed_nodes, counts.frames, counts.destroyed_frames,
                shared, left);
}
