/* Forks and ends again and again, each time in a session of its own: the newest process is on nobody's list. */
#include <stdlib.h>
#include <unistd.h>

int main(int count, char **words)
{
    useconds_t pause_us = count > 1 ? atoi(words[1]) : 0;
    for (;;) {
        if (pause_us)
            usleep(pause_us);
        pid_t pid = fork();
        if (pid > 0)
            _exit(0);
        if (pid == 0)
            setsid();
    }
}
