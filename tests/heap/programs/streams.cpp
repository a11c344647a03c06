// streams.cpp: writes and parses large strings by string streams and file streams, and edits them
// by std::string and string_view.
#include <algorithm>
#include <cctype>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iomanip>
#include <iostream>
#include <iterator>
#include <map>
#include <sstream>
#include <string>
#include <string_view>
#include <unistd.h>
#include <vector>

namespace {

std::uint64_t random_state = 16;

std::uint32_t draw(std::uint32_t limit)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return static_cast<std::uint32_t>(random_state >> 16) % limit;
}

struct Row {
    int number = 0;
    std::string name;
    double price = 0;
    unsigned code = 0;
};

std::ostream &operator<<(std::ostream &out, const Row &row)
{
    out << std::setw(6) << std::setfill('0') << row.number << ' ' << std::left << std::setw(12)
        << std::setfill('_') << row.name << std::right << ' ' << std::fixed << std::setprecision(2);
    return out << row.price << " 0x" << std::hex << row.code << std::dec;
}

std::istream &operator>>(std::istream &in, Row &row)
{
    in >> row.number >> row.name >> row.price >> std::hex >> row.code >> std::dec;
    row.name.erase(std::find(row.name.begin(), row.name.end(), '_'), row.name.end());
    return in;
}

std::uint64_t checksum(std::string_view text)
{
    std::uint64_t sum = 0;
    for (char c : text)
        sum = sum * 31 + static_cast<unsigned char>(c);
    return sum;
}

std::string write_rows(int count)
{
    std::ostringstream out;
    for (int i = 0; i < count; i++) {
        Row row{i, std::string(3 + draw(7), static_cast<char>('a' + i % 26)), draw(100000) / 8.0,
                draw(1u << 20)};
        out << row << '\n';
    }
    return out.str();
}

void parse_rows(const std::string &text)
{
    std::istringstream in(text);
    std::map<char, std::vector<Row>> by_letter;
    double total = 0;
    unsigned codes = 0;
    for (Row row; in >> row; by_letter[row.name.front()].push_back(row)) {
        total += row.price;
        codes ^= row.code;
    }
    std::cout << "rows: " << by_letter.size() << " letters, total " << total << ", codes " << codes
              << ", last " << by_letter['c'].back() << '\n';
}

std::string edit(std::string text)
{
    std::size_t replaced = 0, lines = 0;
    for (std::size_t at = 0; (at = text.find("aaa", at)) != std::string::npos; at += 60, replaced++)
        if (at < 20000) // each replacement moves the rest of the text
            text.replace(at, 3, "<three>");
    for (std::string_view rest = text; !rest.empty(); lines++)
        rest.remove_prefix(std::min(rest.size(), rest.find('\n') + 1));
    std::string reversed(text.rbegin(), text.rend());
    std::transform(reversed.begin(), reversed.end(), reversed.begin(),
                   [](unsigned char c) { return static_cast<char>(std::toupper(c)); });
    text += reversed;
    std::cout << "edited: " << replaced << " found, " << lines << " lines, " << text.size()
              << " bytes, rank " << text.rfind("X0") << '\n';
    return text;
}

// Write the text to a temporary file by one call, and read it back by two kinds of iterators.
void use_file(const std::string &text)
{
    char name[] = "/tmp/ciel-streams-XXXXXX";
    int descriptor = mkstemp(name);
    if (descriptor < 0)
        throw std::ios_base::failure("mkstemp");
    std::fstream file(name, std::ios::in | std::ios::out | std::ios::binary);
    std::remove(name);
    close(descriptor);
    file.write(text.data(), static_cast<std::streamsize>(text.size()));
    file.seekg(0);
    std::string line;
    std::uint64_t sum = 0, lines = 0;
    while (lines < 1000 && std::getline(file, line))
        sum += checksum(line) * ++lines;
    std::string rest{std::istreambuf_iterator<char>(file), {}};
    std::cout << "file: " << lines << " lines, sum " << std::hex << sum << ", rest " << std::dec
              << rest.size() << " bytes, sum " << std::hex << checksum(rest) << std::dec << '\n';
}

} // namespace

int main()
{
    std::string text = write_rows(14000);
    std::cout << "text: " << text.size() << " bytes, sum " << std::hex << checksum(text) << std::dec
              << '\n';
    parse_rows(text);
    text = edit(std::move(text));
    use_file(text);
    std::cout << text.substr(30, 25000) << std::endl;
}
