/* Count the words of an object: a task in C. */
#include <ciel.h>
#include <ctype.h>

int main(int argc, char *argv[])
{
    char text[65536], answer[32];
    long words = 0;
    int in_word = 0, got;

    ciel_init(argv[argc - 3], argv[argc - 1]);
    json_t *task = ciel_get_task();
    json_t *ref = json_array_get(json_object_get(task, "proc_pargs"), 0);
    struct ciel_input *input;
    while ((input = ciel_open_ref(ref)) == NULL)
        ciel_block_on_refs(1, ref);
    while ((got = ciel_read_ref(input, text, sizeof text)) > 0)
        for (int i = 0; i < got; i++) {
            int is_letter = !isspace((unsigned char)text[i]);
            words += is_letter && !in_word;
            in_word = is_letter;
        }
    snprintf(answer, sizeof answer, "%ld\n", words);
    ciel_define_output_with_plain_string(0, answer);
    ciel_exit();
    ciel_close_ref(input);
    json_decref(task);
    return got < 0;
}
